from __future__ import annotations

import gguf
import pytest

from slipstream.weights.formats.ggml_types import GGML_TYPE_BY_NAME
from slipstream.weights.scheme import QuantScheme, scheme_of

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("dtype", GGML_TYPE_BY_NAME)
def test_every_type_has_a_scheme_that_fits_its_size(dtype: str) -> None:
    scheme = scheme_of(dtype)
    block_size, type_size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
    stored_bits = 8 * type_size / block_size
    if scheme.kind != "int":
        assert stored_bits == scheme.bits
    else:
        assert scheme.bits < stored_bits < scheme.bits + 1.01
        assert scheme.group_size is not None
        assert block_size % scheme.group_size == 0


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("F16", "fp16"),
        ("BF16", "bf16"),
        ("Q4_1", "int4 per group of 32, asymmetric"),
        ("Q6_K", "int6 per group of 16, symmetric"),
    ],
)
def test_in_words(dtype: str, text: str) -> None:
    assert str(scheme_of(dtype)) == text


def test_per_channel_in_words() -> None:
    assert str(QuantScheme(8, "int", "channel", activation="int8")) == "int8 per channel, symmetric"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 0, "kind": "float"}, "bits is 0"),
        ({"bits": 4, "kind": "int", "granularity": "group"}, "group_size is None"),
        ({"bits": 8, "kind": "int", "granularity": "channel", "group_size": 32}, "group_size is 32"),
        ({"bits": 8, "kind": "int", "granularity": "group", "group_size": 0}, "group_size is 0"),
        ({"bits": 8, "kind": "int"}, "does not go with"),
        ({"bits": 16, "kind": "float", "granularity": "channel"}, "does not go with"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuantScheme(**fields)  # type: ignore[arg-type]


def test_an_unknown_type() -> None:
    with pytest.raises(KeyError):
        scheme_of("IQ2_XXS")
