"""The dashboard's map: `streamlit run app.py`."""

import logging

import streamlit as st

from app_pages._frame import frame
from app_pages._widgets import plain

st.set_page_config(page_title="Head interaction workbench", layout="wide", initial_sidebar_state="expanded")
st.html("<style>.stMainBlockContainer { padding-top: 3.2rem; padding-bottom: 2rem }</style>")

# The folder is not called pages: Streamlit's older router would take it over on a fresh server, and answer a copied link
# with "Page not found".
page = st.navigation(
    [
        st.Page("app_pages/overview.py", title="Overview", default=True),
        st.Page("app_pages/interaction.py", title="Interaction", url_path="head-interaction"),
    ]
)
try:
    st.session_state["view"] = frame()
    page.run()
except (ValueError, OSError) as error:
    logging.getLogger(__name__).exception("shown on the page")
    st.error(plain(error))
