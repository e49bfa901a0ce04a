from .metafile import Cell, Figure, read_tables, select_cells
from .results import load_results, save_result, summarise
from .sheet import Sheet
from .tables import list_sheet, table_sheets

__all__ = [
    'Cell', 'Figure', 'Sheet', 'list_sheet', 'load_results', 'read_tables',
    'save_result', 'select_cells', 'summarise', 'table_sheets'
]
