"""Sphinx configuration."""

import qposterior

project = "qposterior"
author = "The qposterior developers"
copyright = "The qposterior developers"
release = version = qposterior.__version__
extensions = ["myst_nb", "sphinx-mathjax-offline", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"qposterior {release}"
exclude_patterns = ["_build", "jupyter_execute"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
autodoc_member_order = "bysource"
autodoc_typehints = "description"
default_role = "code"
