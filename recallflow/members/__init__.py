"""Several members of one deployment on one machine: `recallflow run --processes N`."""
