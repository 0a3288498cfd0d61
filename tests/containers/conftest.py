"""Building images takes minutes and a container engine: those tests run where the marker `image` is asked for."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "image: builds images and runs containers; `make image-test`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "image" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("image"):
            item.add_marker(pytest.mark.skip(reason="builds images, which takes minutes: make image-test"))
