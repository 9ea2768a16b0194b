# SPDX-License-Identifier: Apache-2.0
"""Calls of torch that capture sees before autograd does, and what it puts in their place.

`intercept` is the mode that sees them; each of its handlers is in the file of its topic: `losses`,
`attention`, `recurrent`, `rewrites`, `statistics`, `least_squares`, `mixed_types`, `value_reads`.
Then the ATen ops of a call arrive at the tagger: `checks` has what torch leaves to the kernels of
a device, `decompositions` the ops that are decomposed while they are recorded.
"""
