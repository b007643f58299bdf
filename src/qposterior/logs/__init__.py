"""From a log of decisions to an answer: reading, choosing a model, fitting; pictures and pages are in `report`."""
