"""The dashboard's map; `python -m pages` starts it."""

import logging

import streamlit as st

from pages._frame import frame
from pages._widgets import plain

st.set_page_config(page_title="Head interaction workbench", layout="wide", initial_sidebar_state="expanded")
st.html(  # choices in a row as high as the fields beside them, so that labels align
    "<style>.stMainBlockContainer { padding-top: 3.2rem; padding-bottom: 2rem }"
    ".stButtonGroup [role=radiogroup] button { min-height: 2.5rem }</style>"
)

# A url_path is no file name in pages/, which Streamlit's older router would take for its own.
page = st.navigation(
    [
        st.Page("pages/overview.py", title="Overview", default=True),
        st.Page("pages/interaction.py", title="Interaction", url_path="head-interaction"),
        st.Page("pages/coalitions.py", title="Coalitions", url_path="head-coalitions"),
        st.Page("pages/game.py", title="Game", url_path="head-game"),
        st.Page("pages/hallucination.py", title="Hallucination", url_path="hallucination-rates"),
        st.Page("pages/train.py", title="Train", url_path="gamelora-train"),
        st.Page("pages/runs.py", title="Runs", url_path="gamelora-runs"),
    ]
)
try:
    st.session_state["view"] = frame()
    page.run()
except (ValueError, OSError) as error:
    logging.getLogger(__name__).exception("shown on the page")
    st.error(plain(error))
