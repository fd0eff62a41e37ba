"""Reports from records: `page.html`, `markdown.markdown`, `card.model_card`, all of `data.ReportData`."""
