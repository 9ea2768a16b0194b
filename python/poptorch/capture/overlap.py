# SPDX-License-Identifier: Apache-2.0
"""Rules for tensors whose transfer to or from the host is to overlap with computation: they are
inputs with no other op, or outputs that are returned once."""

from . import errors


class Overlap:
    """Those tensors of one capture."""

    def __init__(self):
        self.inputs = []  # what forward was called with
        self.where = None  # the line of the first that really overlaps
        self._marked_inputs = []  # (index, line)
        self._marked_outputs = []  # (tensor, line)

    def mark_input(self, tensor, overlaps):
        """Marks an input; returns it behind an op of its own, so that others on it are seen."""
        where = self._seen(overlaps)
        index = next((i for i, t in enumerate(self.inputs) if t is tensor), None)
        if index is None:
            raise _error(
                "input", "applied on a node which is not a tensor input to the model", where
            )
        self._marked_inputs.append((index, where))
        return tensor.view_as(tensor)

    def mark_output(self, tensor, overlaps):
        """Marks a tensor that forward is going to return."""
        self._marked_outputs.append((tensor, self._seen(overlaps)))
        return tensor

    def _seen(self, overlaps):
        where = errors.user_frame()
        if overlaps and self.where is None:
            self.where = where
        return where

    def check_outputs(self, leaves):
        """Raises unless every marked output is one of the tensors that forward returned."""
        for tensor, where in self._marked_outputs:
            count = sum(leaf is tensor for leaf in leaves)
            if count == 0:
                text = "applied on a node which is not a tensor output to the model"
                raise _error("output", text, where)
            if count > 1:
                raise _error("output", "cannot be used with a tensor that is returned twice", where)

    def check_inputs(self, placeholders):
        """Raises if another op uses a marked input."""
        for index, where in self._marked_inputs:
            if len(placeholders[index].users) > 1:
                raise _error("input", "must be the only op applied to an input", where)


def _error(what, text, where):
    return errors.make_error(f"poptorch.set_overlap_for_{what} {text}", where)
