"""Spans -> an OpenTelemetry collector, over HTTP with protobuf, by the names of the GenAI conventions.

`rollout` is an `invoke_agent` span, `chat` a `chat` span with the tokens it used, `execute_tool` a tool's call; what
the conventions have no name for is an attribute below `headrace.`.
"""

import urllib.request
from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from components.telemetry.episodes import Node
from components.telemetry.spans import unix_time

PATH = "/v1/traces"
_BATCH = 2_000
_SECONDS = 10.0

OPERATIONS = {"rollout": "invoke_agent", "chat": "chat", "execute_tool": "execute_tool"}

NAMES = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "tool": "gen_ai.tool.name",
    "episode": "gen_ai.conversation.id",
}
"""Attributes that the conventions have a name for."""


class OtlpWriter:
    """Sends to `ENDPOINT/v1/traces`, 2000 spans in a request. Raises OSError where the collector does not take them."""

    name = "OTLP"

    def __init__(self, endpoint: str, *, run: str, model: str, environment: str) -> None:
        self._url = endpoint.rstrip("/") + ("" if endpoint.rstrip("/").endswith(PATH) else PATH)
        self._resource = {"service.name": "headrace", "headrace.run": run}
        self._model = model
        self._environment = environment

    def write(self, nodes: Sequence[Node]) -> None:
        """Send the nodes."""
        for start in range(0, len(nodes), _BATCH):
            self._send(self.request(nodes[start : start + _BATCH]))

    def close(self) -> None:
        """Nothing is held back."""

    def request(self, nodes: Sequence[Node]) -> ExportTraceServiceRequest:
        """The nodes as a collector takes them."""
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.extend(_attributes(self._resource))
        scope = resource.scope_spans.add()
        scope.scope.name = "headrace"
        scope.spans.extend(self._span(node) for node in nodes)
        return request

    def _span(self, node: Node) -> OtlpSpan:
        span = node.span
        told = dict(span.attributes)
        operation = OPERATIONS.get(span.name)
        attributes: dict[str, Any] = {}
        if operation is not None:
            attributes["gen_ai.operation.name"] = operation
        if operation == "chat":
            attributes |= {"gen_ai.provider.name": "headrace", "gen_ai.request.model": self._model}
            if "finish_reason" in told:
                attributes["gen_ai.response.finish_reasons"] = [told.pop("finish_reason")]
        if operation == "invoke_agent":
            attributes["gen_ai.agent.name"] = self._environment
        failed = told.get("outcome") == "failed" or (
            span.name == "execute_tool" and told.get("outcome", "ok") not in ("ok", "refused")
        )
        if failed:
            attributes["error.type"] = told.pop("failure", told["outcome"])
        attributes |= {NAMES.get(key, f"headrace.{key}"): value for key, value in told.items() if value is not None}
        subject = {"chat": self._model, "invoke_agent": self._environment}.get(operation or "", told.get("tool"))
        return OtlpSpan(
            trace_id=bytes.fromhex(node.trace),
            span_id=bytes.fromhex(node.id),
            parent_span_id=bytes.fromhex(node.parent) if node.parent else b"",
            name=f"{operation} {subject}" if operation else span.name,
            kind=OtlpSpan.SPAN_KIND_CLIENT if operation == "chat" else OtlpSpan.SPAN_KIND_INTERNAL,
            start_time_unix_nano=int(unix_time(span.start) * 1e9),
            end_time_unix_nano=int(unix_time(span.end) * 1e9),
            attributes=_attributes(attributes),
            status=Status(code=Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET),
        )

    def _send(self, request: ExportTraceServiceRequest) -> None:
        call = urllib.request.Request(
            self._url, data=request.SerializeToString(), headers={"Content-Type": "application/x-protobuf"}
        )
        with urllib.request.urlopen(call, timeout=_SECONDS) as answer:
            answer.read()


def _attributes(values: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in values.items()]


def _value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list | tuple):
        found = AnyValue()
        found.array_value.values.extend(_value(each) for each in value)
        return found
    return AnyValue(string_value=str(value))
