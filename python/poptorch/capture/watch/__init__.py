# SPDX-License-Identifier: Apache-2.0
"""What forward reads and changes of Python itself: it runs once, so that is frozen in the program.

`reach` lists the values that forward can change, `snapshots` compares them before and after it,
`self_updates` finds in bytecode which of them are counters, and `python_state` warns of those.
`host_reads` notices random numbers and the time.
"""
