"""A table as files: Markdown for a design document, and a workbook where the extra is installed."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence

from fastapi import Response

from app.domain.errors import Unsupported

WORKBOOK = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
# Numbers above this lose digits in a workbook's cells, which are doubles.
_EXACT = 2**53

Row = Sequence[object]


def markdown(header: Row, rows: Sequence[Row]) -> str:
    """Return a table in Markdown; numbers stand to the right."""
    numeric = [all(isinstance(row[index], int) for row in rows) for index in range(len(header))]
    lines = [_line(header), _line(["---:" if right else "---" for right in numeric])]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    cells = ("" if item is None else str(item) for item in row)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def markdown_download(name: str, header: Row, rows: Sequence[Row]) -> Response:
    """Return a table in Markdown as a file."""
    return Response(
        markdown(header, rows),
        media_type="text/markdown; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def has_workbooks() -> bool:
    """Return whether the extra that writes workbooks is installed."""
    return importlib.util.find_spec("xlsxwriter") is not None


def workbook_download(name: str, header: Row, rows: Sequence[Row]) -> Response:
    """Return a table as a workbook in which no text is taken for a formula.

    Raises:
        Unsupported: where the extra is not installed.

    """
    if not has_workbooks():
        raise Unsupported("{field}: workbooks need the extra xlsx to be installed", field="format")
    import xlsxwriter

    out = io.BytesIO()
    # Strings are written as strings, whatever they begin with.
    with xlsxwriter.Workbook(out, {"in_memory": True, "strings_to_formulas": False,
                                   "strings_to_urls": False}) as book:  # fmt: skip
        sheet = book.add_worksheet()
        bold = book.add_format({"bold": True})
        sheet.freeze_panes(1, 0)
        for column, text in enumerate(header):
            sheet.write_string(0, column, _safe(str(text)), bold)
        for index, row in enumerate(rows, 1):
            for column, item in enumerate(row):
                if isinstance(item, int) and abs(item) < _EXACT:
                    sheet.write_number(index, column, item)
                elif item is not None:
                    sheet.write_string(index, column, _safe(str(item)))
    return Response(
        out.getvalue(),
        media_type=WORKBOOK,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
