# SPDX-License-Identifier: Apache-2.0
"""What capture makes of recurrent layers: one row per layer and direction, products beside it."""

import ir_interpreter as interpreter
import pytest
import torch
from harness import WithLoss, captured, check
from poptorch import Error
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Outputs(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        return self.rnn(x)[0]


def test_a_layer_is_one_row_however_long_the_sequence():
    model = WithLoss(Outputs(nn.LSTM(3, 5, num_layers=2, bidirectional=True)))
    ops = interpreter.parse(captured(model, (torch.randn(50, 2, 3),)).text).ops()
    assert ops.count("lstm_layer") == ops.count("lstm_layer_backward") == 4
    assert len(ops) < 150


def test_an_absent_state_costs_nothing():
    """The zeros that nn.GRU makes are neither multiplied nor do they give weight gradients."""
    g = interpreter.parse(captured(WithLoss(Outputs(nn.GRU(3, 5))), (torch.randn(4, 2, 3),)).text)
    forward = next(n for n in g.nodes if n.name == "gru_layer")
    assert forward.args[1] is None
    products = [n for n in g.nodes if n.name == "mm"]
    assert len(products) == 2  # of the input's weights and of the state's


def test_inference_keeps_no_gates():
    g = interpreter.parse(captured(nn.LSTM(3, 5), (torch.randn(4, 2, 3),), training=False).text)
    node = next(n for n in g.nodes if n.name == "lstm_layer")
    assert [list(shape) for _, shape in node.types[3:]] == [[0], [0]]


def test_dropout_between_layers():
    model = WithLoss(Outputs(nn.GRU(3, 5, num_layers=3, dropout=0.5)))
    ops = interpreter.parse(captured(model, (torch.randn(4, 2, 3),)).text).ops()
    assert ops.count("uniform") + ops.count("native_dropout") == 2
    check(model.eval(), (torch.randn(4, 2, 3),))


@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_to_a_total_length(batch_first):
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 5, batch_first=batch_first)
            self.lengths = torch.tensor([2, 4, 1])

        def forward(self, x):
            packed = pack_padded_sequence(x, self.lengths, batch_first, enforce_sorted=False)
            y, final = self.rnn(packed)
            return pad_packed_sequence(y, batch_first, padding_value=-2.0, total_length=6), final

    shape = (3, 5, 3) if batch_first else (5, 3, 3)
    check(WithLoss(Padded()), (torch.randn(shape),))


def test_lengths_must_be_known():
    class Varying(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 5)

        def forward(self, x, lengths):
            return self.rnn(pack_padded_sequence(x, lengths))[1]

    with pytest.raises(Error, match=r"(?s)lengths of a packed sequence .*test_recurrent\.py"):
        args = (torch.randn(5, 2, 3), torch.tensor([5, 3]))
        captured(Varying(), args, training=False, values_read="error")


def test_wrong_lengths_are_errors():
    class Wrong(nn.Module):
        def __init__(self, lengths):
            super().__init__()
            self.lengths = lengths

        def forward(self, x):
            return pack_padded_sequence(x, self.lengths).data

    for lengths in ([3, 5], [5, 0], [6, 2], [3]):
        with pytest.raises(RuntimeError, match="lengths"):
            captured(Wrong(lengths), (torch.randn(5, 2, 3),), training=False)
