"""How is it shown? One run as text, Markdown, JSON and HTML."""
