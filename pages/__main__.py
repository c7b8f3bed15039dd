"""`python -m pages [streamlit options]`: start the dashboard.

Until st.navigation has run once, Streamlit's older router takes a folder called pages for its own: on a fresh server it answers
a copied link with "Page not found" and a menu of file names. It is told here, before the first visit, that the map is app.py's.
"""

import sys
from pathlib import Path

from streamlit.runtime.pages_manager import PagesManager
from streamlit.web import cli

PagesManager.uses_pages_directory = False
sys.argv = ["streamlit", "run", str(Path(__file__).resolve().parents[1] / "app.py"), *sys.argv[1:]]
cli.main()
