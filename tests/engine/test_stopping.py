from components.engine.stopping import tokens_until_stop

PIECES = {1: b"\xf0\x9f", 2: b"\x98\x80", 3: b"</answer>", 4: b"</ans", 5: b"wer>"}
STOP = ("</answer>",)


def decode(ids):
    """Bytes by token, put together before they are read; any other token is an x."""
    return b"".join(PIECES.get(each, b"x") for each in ids).decode(errors="replace")


def test_tokens_are_kept_up_to_the_one_that_completes_the_stop_string():
    assert tokens_until_stop(STOP, decode, [9], [8, 3, 7]) == 2
    assert tokens_until_stop(STOP, decode, [], [3]) == 1


def test_a_stop_string_may_begin_in_an_earlier_dispatch():
    assert tokens_until_stop(STOP, decode, [9, 4], [5, 7]) == 1
    assert tokens_until_stop(STOP, decode, [9, 4], [7, 5]) is None


def test_the_first_of_several_stop_strings_counts():
    assert tokens_until_stop(("</answer>", "xx"), decode, [], [4, 8, 8, 3]) == 3


def test_a_stop_string_is_found_after_a_character_that_is_split_over_two_tokens():
    stop = ("\N{GRINNING FACE}</answer>",)
    assert tokens_until_stop(stop, decode, [8, 1], [2, 3, 8]) == 2
    assert tokens_until_stop(stop, decode, [], [1, 2, 3]) == 3


def test_half_a_character_at_the_end_is_no_stop():
    assert tokens_until_stop(STOP, decode, [8], [1]) is None


def test_a_long_completion_is_not_read_again_from_its_beginning():
    read = []

    def watched(ids):
        read.append(len(ids))
        return decode(ids)

    assert tokens_until_stop(STOP, watched, [8] * 10_000, [8, 8]) is None
    assert max(read) < 50
