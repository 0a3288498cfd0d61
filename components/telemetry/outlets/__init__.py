"""Numbers and spans of a run -> the programs in which people already watch: TensorBoard, Prometheus, OTLP, MLflow."""
