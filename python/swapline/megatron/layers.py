"""The five decorators of layer-input swap on Megatron's and MindSpeed's functions."""

from collections.abc import Callable

from swapline import layer_input

# MindSpeed's functions for forward-backward overlap, and what wraps each.
FORWARD_FUNCTIONS = ("transformer_layer_forward_moe", "transformer_layer_forward_dense")
FORWARD_BACKWARD_FUNCTIONS = tuple(
    f"transformer_layer_forward_{forward}_backward_{backward}_overlaping"
    for forward in ("dense", "moe")
    for backward in ("dense", "moe")
)
BACKWARD_FUNCTIONS = ("transformer_layer_backward",)


def wrapper_of(function_name: str) -> Callable | None:
    """The decorator for one of MindSpeed's functions; None: not one of them."""
    for names, wrapper in (
        (FORWARD_FUNCTIONS, layer_input.swap_layer_input_fboverlap_forward_wrapper),
        (FORWARD_BACKWARD_FUNCTIONS, layer_input.swap_layer_input_fboverlap_1f1b_wrapper),
        (BACKWARD_FUNCTIONS, layer_input.swap_layer_input_fboverlap_backward_wrapper),
    ):
        if function_name in names:
            return wrapper
    return None


def wrap_transformer_layer(
    layer_class: type, *, set_attribute: Callable[[type, str, Callable], None] = setattr
) -> None:
    """Wraps a layer class's __init__ and forward: its instances made from now on swap their inputs.

    Throws ValueError when the class, or one it inherits from, is wrapped already.
    """
    if hasattr(layer_class.__init__, "_swapline_wrapped"):
        raise ValueError(
            f"{layer_class.__qualname__} swaps its layers' inputs already: wrap it once"
        )
    init = layer_input.swap_layer_input_init_wrapper(layer_class.__init__)
    init._swapline_wrapped = layer_class
    set_attribute(layer_class, "__init__", init)
    forward = layer_input.swap_layer_input_forward_wrapper(layer_class.forward)
    set_attribute(layer_class, "forward", forward)
