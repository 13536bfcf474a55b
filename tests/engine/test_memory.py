import pytest

from slipstream.engine.memory import MIN_DERIVED_MODEL_LEN, MemoryPlan, plan_memory
from slipstream.errors import ConfigError, InsufficientMemoryError
from slipstream.kv.spec import KVSpec

pytestmark = pytest.mark.fast

SPEC = KVSpec(num_layers=2, num_kv_heads=2, head_dim=8, block_size=16, dtype="float16")  # 2 KiB per block
MIB = 2**20


def plan(**changes: object) -> MemoryPlan:
    arguments: dict[str, object] = {
        "total": 100 * MIB,
        "weights": 20 * MIB,
        "workspace": 10 * MIB,
        "max_model_len": 1024,
        "max_num_seqs": 10_000,
        "memory_utilization": 0.8,
        "headroom": 0.125,
    }
    return plan_memory(SPEC, **(arguments | changes))  # type: ignore[arg-type]


def test_number_of_blocks_is_what_is_left_less_headroom() -> None:
    p = plan()
    assert SPEC.bytes_per_block == 2 * 2 * 2 * 8 * 2 * 16 == 2048
    assert p.num_blocks == int((80 - 30) * MIB * 0.875) // 2048 == 22400
    assert (p.num_tokens, p.kv_bytes) == (22400 * 16, 22400 * 2048)
    assert (p.max_model_len, p.max_model_len_why, p.bound, p.warnings) == (1024, None, "memory", ())


def test_free_memory_bounds_the_budget() -> None:
    assert plan(free=40 * MIB).num_blocks == int(10 * MIB * 0.875) // 2048
    assert plan(free=90 * MIB).num_blocks == plan().num_blocks


def test_a_small_model_does_not_take_more_than_all_sequences_need() -> None:
    p = plan(max_num_seqs=3)
    assert (p.num_blocks, p.bound) == (3 * 1024 // 16, "sequences")
    assert "all that max_num_seqs sequences of max_model_len can need" in p.formula()


def test_exact_fit_of_one_sequence() -> None:
    one = 1024 // 16 * 2048
    p = plan(headroom=0.0, memory_utilization=1.0, total=30 * MIB + one, max_model_len_asked=True)
    assert (p.num_blocks, p.max_model_len, p.bound) == (64, 1024, "memory")


def test_an_asked_context_that_does_not_fit_is_refused_with_the_numbers() -> None:
    one = 1024 // 16 * 2048
    with pytest.raises(InsufficientMemoryError) as caught:
        plan(headroom=0.0, memory_utilization=1.0, total=30 * MIB + one - 1, max_model_len_asked=True)
    message = str(caught.value)
    for part in ("1024 tokens", "64 KV blocks", "63 fit", "0.02 GiB weights", "0.01 GiB workspace", "max_model_len"):
        assert part in message


def test_a_derived_context_is_lowered_and_says_why() -> None:
    one = 1024 // 16 * 2048
    p = plan(headroom=0.0, memory_utilization=1.0, total=30 * MIB + one - 1)
    assert (p.num_blocks, p.max_model_len, p.max_model_len_wanted) == (63, 63 * 16, 1024)
    assert p.max_model_len_why is not None
    assert "1008 tokens" in p.max_model_len_why


def test_a_derived_context_is_not_lowered_to_uselessness() -> None:
    enough = MIN_DERIVED_MODEL_LEN // 16 * 2048
    arguments = {"headroom": 0.0, "memory_utilization": 1.0}
    assert plan(total=30 * MIB + enough, **arguments).max_model_len == MIN_DERIVED_MODEL_LEN
    with pytest.raises(InsufficientMemoryError, match=f"one sequence of {MIN_DERIVED_MODEL_LEN} tokens, the least"):
        plan(total=30 * MIB + enough - 1, **arguments)


def test_weights_larger_than_memory() -> None:
    with pytest.raises(InsufficientMemoryError, match="but 0 fit"):
        plan(weights=1000 * MIB)


def test_warns_above_half_of_memory_and_not_at_half() -> None:
    half = plan(total=64 * MIB, weights=0, workspace=0, memory_utilization=0.5, headroom=0.0)
    assert half.kv_bytes * 2 == half.total
    assert half.warnings == ()
    more = plan(total=64 * MIB, weights=0, workspace=0, memory_utilization=0.51, headroom=0.0)
    assert len(more.warnings) == 1
    assert "more than half" in more.warnings[0]


def test_formula_shows_every_term() -> None:
    text = plan(free=90 * MIB).formula()
    for part in (
        "2 (K, V) x 2 layers x 2 KV heads x 8 values in float16 = 128 bytes",
        "min(0.80 x 0.10 GiB total, 0.09 GiB free) - 0.02 GiB weights - 0.01 GiB workspace) x 0.875",
        "22400 blocks x 16 tokens = 358400 tokens = 0.04 GiB",
        "Sequences of 1024 tokens that fit at once: 350",
    ):
        assert part in text


@pytest.mark.parametrize("value", [0.0, -0.1, 1.01, float("nan")])
def test_bad_utilization(value: float) -> None:
    with pytest.raises(ConfigError, match="memory_utilization"):
        plan(memory_utilization=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_bad_headroom(value: float) -> None:
    with pytest.raises(ConfigError, match="headroom"):
        plan(headroom=value)


def test_an_asked_number_of_blocks_is_taken_as_it_is() -> None:
    p = plan(num_blocks=64)
    assert (p.num_blocks, p.max_model_len, p.bound, p.num_blocks_why) == (64, 1024, "asked", "as set")
    assert plan(num_blocks=10_000, max_num_seqs=1).num_blocks == 10_000


def test_too_many_blocks_are_refused_with_both_numbers() -> None:
    with pytest.raises(InsufficientMemoryError, match=r"22401 KV blocks were asked for .* but 22400 fit"):
        plan(num_blocks=22401)


def test_few_blocks_lower_a_derived_context_and_refuse_an_asked_one() -> None:
    p = plan(num_blocks=32)
    assert p.max_model_len == 32 * 16
    assert p.max_model_len_why is not None
    with pytest.raises(ConfigError, match=r"32 KV blocks were asked for, .* needs 64"):
        plan(num_blocks=32, max_model_len_asked=True)


def test_a_pool_that_nobody_asked_for_takes_at_most_half() -> None:
    p = plan(memory_utilization=0.9, memory_utilization_asked=False)
    assert (p.num_blocks, p.bound, p.warnings) == (50 * MIB // 2048, "half", ())
    assert "half of the memory" in p.formula()
    asked = plan(memory_utilization=0.9)
    assert (asked.bound, len(asked.warnings)) == ("memory", 1)


def test_half_is_exceeded_rather_than_the_context_shortened() -> None:
    one = 60 * MIB // 2048 * 16
    p = plan(weights=0, workspace=0, max_model_len=one, memory_utilization_asked=False)
    assert (p.max_model_len, p.num_blocks, len(p.warnings)) == (one, 60 * MIB // 2048, 1)


@pytest.mark.parametrize("asked", [True, False])
def test_too_few_blocks_asked_for_are_named_as_the_reason(asked: bool) -> None:
    with pytest.raises(ConfigError, match="num_blocks: 3 KV blocks were asked for") as refused:
        plan(num_blocks=3, max_model_len=2048, max_model_len_asked=asked)
    needed, shorter = (128, "lower") if asked else (16, "set a smaller")
    assert f"Ask for {needed} or more, or {shorter} max_model_len." in str(refused.value)
    assert ("the least context that an engine starts with" in str(refused.value)) is not asked


class TestTablesOfPositions:
    """Rotation tables grow with the context, which the plan itself may shorten."""

    def test_they_take_memory_from_the_blocks(self) -> None:
        p = plan(bytes_per_position=1 << 10)
        assert p.workspace == 11 * MIB
        assert p.num_blocks == int((80 - 31) * MIB * 0.875) // 2048

    @pytest.mark.parametrize("each", [0, 1, 512, 4000])
    @pytest.mark.parametrize("total", [40, 50, 77])
    def test_a_shortened_context_fits_with_its_tables(self, each: int, total: int) -> None:
        p = plan(total=total * MIB, max_model_len=1 << 20, max_num_seqs=1, bytes_per_position=each)
        assert p.max_model_len == p.num_tokens < 1 << 20
        assert p.workspace == 10 * MIB + each * p.max_model_len
        taken = p.kv_bytes + each * p.max_model_len
        usable = int((int(total * MIB * 0.8) - 30 * MIB) * 0.875)
        assert usable - 2048 - 16 * each < taken <= usable

    def test_a_context_that_was_asked_for_is_refused_with_them(self) -> None:
        with pytest.raises(InsufficientMemoryError, match=r"0\.51 GiB workspace"):
            plan(max_model_len=1 << 20, bytes_per_position=512, max_model_len_asked=True)


def test_what_tokens_take_besides_their_kv_is_kept_free() -> None:
    p = plan(bytes_per_token=128)  # a block of 16 tokens has 2048 bytes of KV
    assert p.num_blocks == int((80 - 30) * MIB * 0.875) // (2048 + 16 * 128)
    assert p.kv_bytes == p.num_blocks * 2048
    assert "n-grams per token = 128 bytes" in p.formula()
    assert "n-grams" not in plan().formula()
