# SPDX-License-Identifier: Apache-2.0
"""Commands that look at the virtual IPUs: gc-monitor, gc-info, gc-reset. They load the core but not
torch, so that they start at once and can be repeated."""
