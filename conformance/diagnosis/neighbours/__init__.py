"""The textbook with one step changed, in every way that slips are made, also those that the catalogue does not list."""

from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.conformance.diagnosis.neighbours.registry import (
    find_made,
    find_neighbour,
    list_layers,
    neighbours,
    neighbours_of,
)

__all__ = ["Neighbour", "find_made", "find_neighbour", "list_layers", "neighbours", "neighbours_of"]
