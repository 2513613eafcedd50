"""Where the sum of the gradient of queries lies: in blocks [64, 64], as threads of a warpgroup hold it.

A block is 4096 numbers in one piece. Element (r, c) of it belongs to lane 4 (r % 8) + (c % 8) / 2 of warp r / 16, and
four neighbours of a thread's 32 numbers to rows r and r + 8 and columns c and c + 1 (PTX, wgmma's D fragment): its
place is 512 (c / 8) + 128 (r / 16) + 16 (r % 8) + 4 ((c % 8) / 2) + 2 (r % 16 / 8) + c % 2. So threads add 16 bytes
at once, side by side.

Blocks follow one another along the columns, then along the rows, then head by head.
"""

from __future__ import annotations

from compilemask.lowering.tiling_to_tt.value import Value

SIDE = 64
"""Rows and columns of a block."""
WORDS = SIDE * SIDE


def blocks_of(rows: int, columns: int) -> int:
    """Blocks that hold so many rows and columns of a head; rows are a multiple of 64."""
    return rows // SIDE * -(-columns // SIDE)


def place_in_block(row: Value, column: Value) -> Value:
    """Of element (row % 64, column % 64)."""
    octet, pair = (column >> 3) & 7, (column >> 1) & 3
    warp, lane_row, below = (row >> 4) & 3, row & 7, (row >> 3) & 1
    return (octet << 9) + (warp << 7) + (lane_row << 4) + (pair << 2) + (below << 1) + (column & 1)
