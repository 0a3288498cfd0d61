"""Texts that models wrote -> calls. Cases TP02, TP05, TP06, TP07, TP11, TP12, TP15."""

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.environments.calculator import CALCULATOR
from components.environments.tools import Tool, tool
from components.rollout.call_text import KINDS, MAX_CALLS, MAX_MALFORMED, ParsedText
from components.rollout.pieces import text_of
from components.rollout.thinking import split_thinking
from components.rollout.tool_calls import HERMES, HERMES_OR_BARE, LLAMA_JSON, QWEN_XML, TaggedCalls
from components.types import ToolCall
from tests.benchmarks.parsers import FORMATS, read
from tests.rollout.outputs_of_models import fuzzed_outputs, megabytes

TAGGED = TaggedCalls("<tool>", "</tool>")


def written(form, *calls):
    return form.between.join(text_of(form.pieces(call)) for call in calls)


def hermes(body):
    return HERMES.parse(f"<tool_call>{body}</tool_call>", [])


def test_text_around_calls_is_the_content_and_calls_keep_their_order():
    first, second = ToolCall("f", {"x": 1}), ToolCall("g", {})
    text = f"Let me see.\n{written(HERMES, first)}\n{written(HERMES, second)}\n"
    assert HERMES.parse(text, []) == ParsedText("Let me see.", (first, second))


def test_a_closing_tag_inside_of_an_argument_ends_nothing():
    arguments = {"path": "doc.md", "text": "close with </tool_call> here"}
    body = json.dumps({"name": "write_file", "arguments": arguments})
    assert HERMES.parse(f"<tool_call>\n{body}\n</tool_call>", []) == ParsedText(
        "", (ToolCall("write_file", arguments),)
    )


def test_arguments_that_are_a_json_text_are_an_object_and_are_rendered_as_one():
    parsed = hermes('{"name": "get_db_config", "arguments": "{\\"param\\": \\"max_connections\\"}"}')
    assert parsed.calls == (ToolCall("get_db_config", {"param": "max_connections"}),)
    assert written(HERMES, parsed.calls[0]) == (
        '<tool_call>\n{"name": "get_db_config", "arguments": {"param": "max_connections"}}\n</tool_call>'
    )


@pytest.mark.parametrize("value", ['"[1]"', '"max"', "[1]", "3", "true", '"{"'])
def test_arguments_that_are_no_object_make_a_malformed_call(value):
    parsed = hermes(f'{{"name": "f", "arguments": {value}}}')
    assert (parsed.calls, len(parsed.malformed)) == ((), 1)
    assert '"arguments"' in parsed.malformed[0].reason


@pytest.mark.parametrize("rest", [', "arguments": ""', ', "arguments": " "', ', "arguments": null', ""])
def test_a_call_without_arguments_is_a_call(rest):
    assert hermes(f'{{"name": "health"{rest}}}').calls == (ToolCall("health", {}),)


def test_a_tool_that_needs_an_argument_says_which_is_missing():
    def read(path: str) -> str:
        return path

    (call,) = hermes('{"name": "read", "arguments": null}').calls
    result = asyncio.run(tool(read).call(call.arguments))
    assert (result.text, result.is_error) == ('error: read: missing argument "path"', True)


def test_parameters_are_read_as_arguments():
    parsed = hermes('{"name": "write_file", "parameters": {"path": "a.txt", "content": "hello"}}')
    assert parsed.calls == (ToolCall("write_file", {"path": "a.txt", "content": "hello"}),)


def test_arguments_beside_the_name_are_malformed_not_lost():
    parsed = hermes('{"name": "write_file", "path": "a.txt"}')
    assert parsed.malformed[0].reason == 'path must stand inside of "arguments"'


def test_json_in_an_answer_is_no_call():
    text = 'Here is a request body:\n```json\n{"name": "delete_all", "arguments": {}}\n```'
    for form in (HERMES, HERMES_OR_BARE, QWEN_XML, TAGGED):
        assert form.parse(text, [CALCULATOR]) == ParsedText(text)


def test_a_message_that_is_exactly_one_object_is_a_call_only_where_that_is_chosen():
    text = ' {"name": "f", "arguments": {"x": 1}}\n'
    assert HERMES.parse(text, []) == ParsedText(text)
    assert HERMES_OR_BARE.parse(text, []).calls == (ToolCall("f", {"x": 1}),)
    assert HERMES_OR_BARE.parse(text + "and more", []).calls == ()
    assert HERMES_OR_BARE.parse('{"t": 1}', []) == ParsedText('{"t": 1}')


def test_a_dotted_name_is_a_name():
    assert hermes('{"name": "math.gcd", "arguments": {"num1": 12, "num2": 18}}').calls == (
        ToolCall("math.gcd", {"num1": 12, "num2": 18}),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>", "not JSON: Expecting value at character 0"),
        ('<tool_call>{"name": "f", "argum', "not JSON: Unterminated string"),
        ('<tool_call>{"name": "f"}}</tool_call>', "</tool_call> must follow the call, not '}</tool_call>'"),
        ('<tool_call>{"name": 3}</tool_call>', '"name" must be the name of a tool'),
        ("<tool_call>[1]</tool_call>", "a call must be a JSON object"),
        ("<tool_call>" + "[" * 200_000, "not usable JSON"),
        ('<tool_call>{"name": ' + "9" * 5000 + "}</tool_call>", "not usable JSON"),
    ],
)
def test_what_cannot_be_understood_is_malformed_with_its_reason(text, reason):
    parsed = HERMES.parse(text, [])
    assert parsed.calls == ()
    assert reason in parsed.malformed[0].reason
    assert parsed.malformed[0].text == text


def test_a_call_whose_closing_tag_was_not_written_before_the_end_is_a_call():
    assert HERMES.parse('<tool_call>\n{"name": "f"}\n', []).calls == (ToolCall("f", {}),)


def test_a_malformed_call_does_not_hide_the_next_one():
    parsed = HERMES.parse('<tool_call>{x}</tool_call> so <tool_call>{"name": "f"}</tool_call>', [])
    assert (parsed.content, parsed.calls, len(parsed.malformed)) == ("so", (ToolCall("f", {}),), 1)


def test_calls_over_the_limit_are_one_malformed_call():
    parsed = HERMES.parse('<tool_call>{"name": "f"}</tool_call>' * 3 * MAX_CALLS, [])
    assert (parsed.content, len(parsed.calls), len(parsed.malformed)) == ("", MAX_CALLS, 1)
    parsed = HERMES.parse("<tool_call>x</tool_call>" * 3 * MAX_MALFORMED, [])
    assert (parsed.content, len(parsed.calls), len(parsed.malformed)) == ("", 0, MAX_MALFORMED + 1)


def edit(old: str, count: int, deep: bool = False) -> str:
    """Edit."""
    return old


XML = """<tool_call>
<function=edit>
<parameter=old>
    if x:
        return 1

</parameter>
</function>
</tool_call>"""


def test_one_newline_on_each_side_of_an_xml_value_is_removed_and_all_else_is_kept():
    parsed = QWEN_XML.parse(XML, [tool(edit)])
    assert parsed == ParsedText("", (ToolCall("edit", {"old": "    if x:\n        return 1\n"}),))
    assert written(QWEN_XML, parsed.calls[0]) == XML


def test_xml_values_have_the_type_that_the_schema_says():
    call = ToolCall("edit", {"old": "3", "count": 3, "deep": True})
    assert QWEN_XML.parse(written(QWEN_XML, call), [tool(edit)]).calls == (call,)
    text = written(QWEN_XML, ToolCall("edit", {"count": "three"}))
    assert QWEN_XML.parse(text, [tool(edit)]).calls == (ToolCall("edit", {"count": "three"}),)


def test_an_xml_value_may_quote_its_own_closing_tag():
    call = ToolCall("edit", {"old": "a </parameter> in text\n", "count": 1})
    assert QWEN_XML.parse(written(QWEN_XML, call), [tool(edit)]).calls == (call,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "f"}</tool_call>', "<function=NAME> must come first"),
        ("<tool_call>\n<function=edit>\n<parameter=old>\nx", "</parameter> is missing after old"),
        ("<tool_call>\n<function=edit>\n</tool_call>", "</function> is missing"),
    ],
)
def test_xml_that_cannot_be_understood_is_malformed_with_its_reason(text, reason):
    assert QWEN_XML.parse(text, []).malformed[0].reason == reason


def test_a_tagged_text_is_the_argument_of_the_only_tool():
    parsed = TAGGED.parse("So <tool> 12+30 </tool>", [CALCULATOR])
    assert parsed == ParsedText("So", (ToolCall("calculator", {"expression": "12+30"}),))
    assert written(TAGGED, parsed.calls[0]) == "<tool>12+30</tool>"


@pytest.mark.parametrize(
    ("tools", "text", "reason"),
    [
        ([CALCULATOR], "<tool>12+30", "</tool> is missing"),
        ([], "<tool>12+30</tool>", "there is no tool to call"),
        ([CALCULATOR, CALCULATOR], "<tool>12+30</tool>", "it does not say which tool to call"),
        ([tool(edit)], "<tool>12+30</tool>", "it does not say which tool to call"),
    ],
)
def test_a_tagged_text_that_is_no_call_is_malformed_with_its_reason(tools, text, reason):
    assert TAGGED.parse(text, tools).malformed[0].reason == reason


TAGS = tuple(f"<{mark}{tag}>" for mark in ("", "/") for tag in ("tool_call", "tool", "function", "parameter"))
HEADS = ("<function=f>", "<parameter=x>")
JSON_PIECES = ('{"name": ', '"f"', ', "arguments": ', "{", "}", "[", '"', "\\", "null", "1e999", "\n", "ü", "\ufffd")
PIECES = st.lists(st.sampled_from(TAGS + HEADS + JSON_PIECES), max_size=25).map("".join)
WRAPPERS = ((HERMES, "<tool_call>"), (HERMES_OR_BARE, "<tool_call>"), (QWEN_XML, "<tool_call>"), (TAGGED, "<tool>"))
ARGUMENTS = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers() | st.booleans() | st.none())
CALLS = st.builds(ToolCall, st.from_regex(r"[a-z_.]{1,10}", fullmatch=True), ARGUMENTS)


@given(PIECES)
def test_no_text_raises_in_any_format_and_every_wrapper_is_a_call_or_malformed(text):
    for form, opens in WRAPPERS:
        parsed = form.parse(text, [CALCULATOR])
        assert all(fault.reason for fault in parsed.malformed)
        if opens not in text and form is not HERMES_OR_BARE:
            assert parsed == ParsedText(text)
        elif opens in text:
            assert parsed.calls or parsed.malformed


@given(st.lists(CALLS, min_size=1, max_size=4))
def test_rendered_calls_are_parsed_back(calls):
    text = "\n".join(written(HERMES, call) for call in calls)
    assert HERMES.parse(text, []) == ParsedText("", tuple(calls))


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        ('{"name": "f", "arguments": {"x": NaN}}', "json", "NaN is no number of JSON"),
        ('{"name": "f", "arguments": {"x": [-Infinity]}}', "json", "-Infinity is no number of JSON"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "size", "1e999 is too large a number"),
        ('{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}", "size", "not usable JSON"),
        ('{"name": "f", "name": "g"}', "json", 'the key "name" stands twice'),
        ('{"name": "f", "arguments": {"x": 1, "x": 2}}', "json", 'the key "x" stands twice'),
        ('{"name": "f", "arguments": ' + "[" * 100 + "]" * 100 + "}", "size", "nested more than 64 deep"),
        ('{"name": "f", "arguments": ' + "[" * 10_000 + "]" * 10_000 + "}", "size", "nested more than 64 deep"),
        ('{"name": "f", "arguments": [' + "0," * 50_000 + "0]}", "size", "more than 20000 values"),
        ('{"name": "f", "arguments": {"x": 1}, "y": 2}', "arguments", 'y must stand inside of "arguments"'),
        ('{"name": "f", "arguments": {}, "parameters": {}}', "arguments", "stand both there"),
        ('{"name": "f", "arguments": "{} {}"}', "arguments", "more follows"),
        ('{"name": "f", "arguments": {"x"', "cut", "Expecting ':' delimiter"),
        ('{"name": "f", "arguments": {"x": "ab', "cut", "Unterminated string"),
        ('{"name": ""}', "name", '"name" must be the name of a tool'),
        ('[{"name": "f"}]', "json", "a call must be a JSON object"),
    ],
)
def test_what_nothing_behind_could_hold_is_malformed_with_a_kind(body, kind, reason):
    text = f"<tool_call>{body}" + ("" if kind == "cut" else "</tool_call>")
    parsed = HERMES.parse(text, [])
    assert (parsed.calls, parsed.malformed[0].kind, parsed.malformed[0].text) == ((), kind, text)
    assert reason in parsed.malformed[0].reason
    assert parsed.malformed[0].kind in KINDS


@pytest.mark.parametrize(
    "text",
    [
        '\ufeff<tool_call>\r\n{"name": "f", "arguments": {"x": "a\\r\\nb"}}\r\n</tool_call>\r\n',
        '<tool_call>\ufeff{"name": "f", "arguments": {"x": "a\\r\\nb"}}</tool_call>',
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"x": "a\\r\\nb"}}}</tool_call>',
        '<tool_call>{"id": 3, "type": "function", "name": "f", "parameters": {"x": "a\\r\\nb"}}</tool_call>',
    ],
)
def test_a_call_is_a_call_whatever_is_written_around_it(text):
    assert HERMES.parse(text, []).calls == (ToolCall("f", {"x": "a\r\nb"}),)


def test_a_call_that_broke_off_does_not_swallow_the_one_after_it():
    parsed = HERMES.parse('<tool_call>{"name": "f", "argu\n<tool_call>{"name": "g"}</tool_call>', [])
    assert (parsed.calls, [fault.kind for fault in parsed.malformed]) == ((ToolCall("g", {}),), ["json"])
    parsed = HERMES.parse('<tool_call><tool_call>{"name": "g"}</tool_call></tool_call>', [])
    assert (parsed.calls, len(parsed.malformed)) == ((ToolCall("g", {}),), 1)


def test_a_string_of_a_megabyte_arrives_whole():
    text = "one, two; [three] {four}\n" * 40_000
    body = json.dumps({"name": "f", "arguments": {"x": text}})
    for form, written_so in ((HERMES, f"<tool_call>{body}</tool_call>"), (LLAMA_JSON, body)):
        assert form.parse(written_so, []).calls == (ToolCall("f", {"x": text}),)
    call = ToolCall("edit", {"old": text})
    assert QWEN_XML.parse(written(QWEN_XML, call), [tool(edit)]).calls == (call,)


def test_half_a_surrogate_pair_is_read_and_left_to_the_tool():
    assert hermes('{"name": "f", "arguments": {"x": "\\ud83d"}}').calls == (ToolCall("f", {"x": "\ud83d"}),)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', [ToolCall("f", {"x": 1})]),
        (' {"type": "function", "name": "f", "parameters": {}}\n', [ToolCall("f", {})]),
        ('<|python_tag|>{"name": "f", "parameters": {}}', [ToolCall("f", {})]),
        ('{"name": "f", "parameters": {}}; {"name": "g", "arguments": {}}', [ToolCall("f", {}), ToolCall("g", {})]),
        ('{"name": "calculator"}', [ToolCall("calculator", {})]),
        ('{"name": "Paris"}', []),
        ('{"t": 1}', []),
        ('Sure: {"name": "f", "parameters": {}}', []),
        ('{"name": "f", "parameters": {}} and more', []),
        ('```json\n{"name": "f", "parameters": {}}\n```', []),
    ],
)
def test_the_whole_message_of_llama_is_a_call_or_none_of_it_is(text, calls):
    parsed = LLAMA_JSON.parse(text, [CALCULATOR])
    assert list(parsed.calls) == calls
    assert parsed == (ParsedText("", tuple(calls)) if calls else ParsedText(text))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"name": "f", "parameters": {"x": "ab', "cut"),
        ('{"name": "f", "parameters": {"x": nan}}', "json"),
        ('<|python_tag|>brave_search.call(query="x")', "form"),
        ("<|python_tag|>", "form"),
    ],
)
def test_what_llama_began_as_a_call_is_malformed_not_an_answer(text, kind):
    parsed = LLAMA_JSON.parse(text, [CALCULATOR])
    assert (parsed.content, parsed.calls, parsed.malformed[0].kind) == ("", (), kind)


def test_the_good_calls_of_llama_before_a_broken_one_still_run():
    parsed = LLAMA_JSON.parse('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {', [])
    assert (parsed.calls, parsed.malformed[0].kind) == ((ToolCall("f", {}),), "cut")


def test_xml_with_windows_line_breaks_keeps_those_of_the_value():
    text = XML.replace("\n", "\r\n")
    assert QWEN_XML.parse(text, [tool(edit)]).calls[0].arguments["old"] == "    if x:\r\n        return 1\r\n"
    kept = ToolCall("edit", {"old": "a\r"})
    assert QWEN_XML.parse(written(QWEN_XML, kept), [tool(edit)]).calls == (kept,)


def test_an_xml_parameter_that_stands_twice_is_malformed_not_overwritten():
    text = written(QWEN_XML, ToolCall("f", {"x": "1"})).replace(
        "</function>", "<parameter=x>\n2\n</parameter>\n</function>"
    )
    parsed = QWEN_XML.parse(text, [])
    assert (parsed.calls, parsed.malformed[0].kind) == ((), "arguments")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": ["integer", "null"]}, "None", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, " 3 ", 3),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "3", "3"),
        ({"type": "dict"}, '{"a": 1.5}', {"a": 1.5}),
        ({"type": "float"}, "NaN", "NaN"),
        ({"type": "integer"}, "3 4", "3 4"),
    ],
)
def test_an_xml_value_is_what_its_schema_allows(schema, text, value):
    shown = Tool("f", "", {"type": "object", "properties": {"x": schema}}, print)
    parsed = QWEN_XML.parse(written(QWEN_XML, ToolCall("f", {"x": text})), [shown])
    assert parsed.calls == (ToolCall("f", {"x": value}),)


@pytest.mark.parametrize(
    ("text", "thinking", "rest"),
    [
        ("<think>\nplan\n</think>\n\nParis", "plan", "Paris"),
        ("\n<think>plan</think>Paris", "plan", "Paris"),
        ("<think>\n\n</think>\n\nParis", "", "Paris"),
        ("<think>plan <tool_call>{}</tool_call>", "plan <tool_call>{}</tool_call>", ""),
        ("Hm. <think>plan <tool_call>{}</tool_call></think>Paris", "plan <tool_call>{}</tool_call>", "Hm. Paris"),
        ("<think>a</think>b<think>c</think>d", "a\n\nc", "bd"),
        ('<tool_call>{"a": "<think>x</think>"}</tool_call>', "", '<tool_call>{"a": "<think>x</think>"}</tool_call>'),
        ("say <think> and nothing more", "", "say <think> and nothing more"),
        ("no thought", "", "no thought"),
    ],
)
def test_what_stands_in_a_thinking_block_is_neither_answer_nor_call(text, thinking, rest):
    assert split_thinking(text, "<tool_call>") == (thinking, rest)


def test_fuzzed_outputs_raise_nothing_lose_nothing_and_are_read_in_linear_time():
    for text in fuzzed_outputs(1000):
        for name, form in FORMATS.items():
            parsed = read(name, text)
            assert all(fault.kind in KINDS and fault.reason and fault.text for fault in parsed.malformed)
            if form.opens and "<think>" not in text and name in ("hermes", "qwen_xml") and form.opens in text:
                assert parsed.calls or parsed.malformed


def test_a_megabyte_is_read_in_no_time_whatever_it_holds():
    # The benchmark measures; this says only that nothing takes a time that grows with the square of the length.
    for label, text in megabytes().items():
        for name in FORMATS:
            started = time.thread_time()
            read(name, text)
            assert time.thread_time() - started < 1.0, (label, name)
