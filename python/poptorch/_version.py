# SPDX-License-Identifier: Apache-2.0
"""The version of the API that programs see, in the form that ``packaging`` reads."""

# The PopTorch release whose behaviour is followed, then the version of this project;
# python/poptorch.egg-info says it to importlib.metadata.
__version__ = "3.4.0+tessera0.1.0"
