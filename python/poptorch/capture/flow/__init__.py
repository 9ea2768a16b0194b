# SPDX-License-Identifier: Apache-2.0
"""Loops and branches: their bodies are traced once, each into a graph of its own.

`lift` finds what a body uses from outside, `body` traces one with its gradients, `loop` and
`branch` put the op with the bodies into the graph around it.
"""
