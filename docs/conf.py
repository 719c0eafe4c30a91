"""How Sphinx builds the site; `make docs` runs it with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

from goldformer import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "goldformer"
version = release = __version__
language = "en"

extensions = ["myst_nb", "sphinx_copybutton", "goldformer_site"]
exclude_patterns = ["_ext", "_static"]
nitpicky = True
# Quotes and dashes are written as they are meant.
smartquotes = False

myst_enable_extensions = ["dollarmath", "fieldlist", "deflist"]
myst_dmath_allow_space = False
myst_heading_anchors = 4
# Every place that a link names is a label; the domains of programming languages take most of the time to ask.
myst_ref_domains = ["std"]

# The notebook is run as the site is built: what it shows is true of this version.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

# Commands are copied without their prompt and without what they print.
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = "goldformer"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
# The longest names of components fit on a line of the sidebar.
_NAMES = {"sidebar-item-font-size": "0.8rem"}
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b57c4", "color-brand-content": "#0b57c4", **_NAMES},
    "dark_css_variables": {"color-brand-primary": "#7db7ff", "color-brand-content": "#7db7ff"},
}
