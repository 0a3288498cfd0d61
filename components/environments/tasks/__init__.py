"""Problems that come with Headrace: each file is one environment, with its data or the way to make it."""
