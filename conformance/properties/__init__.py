"""The laws that hold for every input, one module a component, and the search that draws inputs for them."""
