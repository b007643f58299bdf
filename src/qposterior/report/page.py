"""What the pages share, as parts of their templates: one look, and tables that sort by the `data-key` of a cell."""

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: 0.25rem 0.8rem; text-align: right; }
th { border-bottom: 2px solid #444; } table.sorts th { cursor: pointer; }
th:first-child, td:first-child, td.name, th.name { text-align: left; }
tr + tr td { border-top: 1px solid #ddd; } tr.best td { font-weight: 600; }
pre { background: #f5f5f5; padding: 1rem; overflow: auto; }
img { max-width: 100%; height: auto; } figure { margin: 2rem 0; } figcaption, .note { color: #555; }
.misfit { background: #fff3e0; border-left: 4px solid #D55E00; padding: 0.5rem 1rem; }
</style>
"""

SORT_SCRIPT = """<script>
document.querySelectorAll("table.sorts th").forEach(head => head.addEventListener("click", () => {
  const body = head.closest("table").querySelector("tbody");
  const column = head.cellIndex, up = head.dataset.order !== "up";
  head.dataset.order = up ? "up" : "down";
  const read = text => text === "" || Number.isNaN(Number(text)) ? text : Number(text);
  const key = row => read(row.cells[column].dataset.key);
  [...body.rows].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (up ? 1 : -1))
    .forEach(row => body.appendChild(row));
}));
</script>
"""
