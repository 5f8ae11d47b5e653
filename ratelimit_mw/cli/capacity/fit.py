"""Least squares: the cost of each part of a call, from the costs of whole phases."""

from collections.abc import Sequence


def fit(rows: Sequence[Sequence[float]], totals: Sequence[float]) -> list[float]:
    """Return a cost for each column, none below 0, so that the sums of the rows are close to the totals.

    Errors count in proportion to their total.

    >>> [round(cost, 6) for cost in fit([(1, 1), (1, 3), (2, 1)], [10, 14, 18])]
    [8.0, 2.0]
    """
    columns = [i for i in range(len(rows[0])) if any(row[i] for row in rows)]
    while True:
        scaled = [[row[i] / total for i in columns] for row, total in zip(rows, totals, strict=True) if total > 0]
        sides = [sum(column) for column in zip(*scaled, strict=True)]
        products = [[sum(row[i] * row[j] for row in scaled) for j in range(len(columns))] for i in range(len(columns))]
        costs = _solve([[*row, side] for row, side in zip(products, sides, strict=True)])
        if not costs or min(costs) >= 0:
            found = dict(zip(columns, costs, strict=True))
            return [found.get(i, 0.0) for i in range(len(rows[0]))]
        del columns[costs.index(min(costs))]


def _solve(matrix: list[list[float]]) -> list[float]:
    """Solve linear equations by elimination. The last column is the right side; a column without a pivot costs 0."""
    size = len(matrix)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-12:
            matrix[i] = [float(i == j) for j in range(size)] + [0.0]
        for row in range(size):
            if row != i:
                factor = matrix[row][i] / matrix[i][i]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[i], strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(matrix)]
