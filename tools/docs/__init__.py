"""The reference and the site: pages made from docstrings, beside the pages of docs/, with checked links.

    python -m tools.docs                    writes build/docs/pages and build/docs/mkdocs.yml, and checks every link
    python -m tools.docs --site             then lets mkdocs (extra "docs") make build/docs/site, with a search page

`names` finds the public names, `docstrings` turns a docstring into Markdown, `reference` writes a page per namespace,
`commands` the page of the command, and `site` joins them with the pages that people write.
"""
