"""What follows a product is done in it, in one order and only if nothing else reads between."""

from __future__ import annotations

from octavo.program.passes.products import (
    activate_in_products,
    add_residuals_in_products,
    cap_in_products,
    gate_in_products,
    scale_in_products,
)
from tests.program.recorded import Recorded


def test_gate_and_up_are_multiplied_in_the_product() -> None:
    r = Recorded()
    r.recorder.gated_activation(r.linear(r.x, 64, gated=True), "silu")
    assert r.after(gate_in_products) == "gemm [64×32 F32] +Silu +gate"


def test_a_matrix_that_is_not_of_gates_and_ups_stays_alone() -> None:
    r = Recorded()
    r.recorder.gated_activation(r.linear(r.x, 64), "silu")
    assert r.after(gate_in_products) == "gemm [64×32 F32]; gate +Silu"


def test_gates_and_ups_with_another_reader_stay() -> None:
    r = Recorded()
    both = r.linear(r.x, 64, gated=True)
    r.recorder.gated_activation(both, "silu")
    _ = both * 2.0
    assert r.after(gate_in_products) == "gemm [64×32 F32]; gate +Silu; scale ×2"


def test_activations_scales_and_caps_are_applied_in_the_product() -> None:
    r = Recorded()
    r.recorder.activation(r.linear(r.x), "gelu")
    r.recorder.soft_cap(r.linear(r.x) * 0.5, 30.0)
    text = r.after(activate_in_products, scale_in_products, cap_in_products)
    assert text == "gemm [32×32 F32] +GeluErf; gemm [32×32 F32] ×0.5 cap 30"


def test_an_activation_stays_if_its_input_has_another_reader() -> None:
    r = Recorded()
    y = r.linear(r.x)
    _ = r.recorder.activation(y, "gelu") + y
    assert r.after(activate_in_products) == "gemm [32×32 F32]; activate +GeluErf; add"


def test_what_a_product_does_later_is_not_followed_by_what_it_does_earlier() -> None:
    """A product scales before it caps and caps before it activates; other orders stay apart."""
    passes = (cap_in_products, scale_in_products, activate_in_products, cap_in_products)
    r = Recorded()
    _ = r.recorder.soft_cap(r.linear(r.x), 30.0) * 0.5
    assert r.after(*passes) == "gemm [32×32 F32] cap 30; scale ×0.5"
    r = Recorded()
    _ = r.recorder.soft_cap(r.recorder.activation(r.linear(r.x), "relu"), 30.0)
    assert r.after(*passes) == "gemm [32×32 F32] +Relu; softcap cap 30"
    r = Recorded()
    _ = (r.x + r.linear(r.x)) * 0.5
    text = r.after(add_residuals_in_products, *passes)
    assert text == "gemm [32×32 F32] +residual; scale ×0.5"


def test_residuals_are_added_in_the_product() -> None:
    r = Recorded()
    _ = r.x + r.linear(r.x)
    assert r.after(add_residuals_in_products) == "gemm [32×32 F32] +residual"


def test_a_sum_of_two_products_is_added_by_the_later_one() -> None:
    r = Recorded()
    one = r.linear(r.x)
    other = r.linear(r.x, 64)
    _ = one + r.linear(other)
    text = r.after(add_residuals_in_products)
    assert text == "gemm [32×32 F32]; gemm [64×32 F32]; gemm [32×64 F32] +residual"
