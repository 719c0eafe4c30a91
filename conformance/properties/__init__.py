"""Which laws hold for every input? What properties are made of, and what draws inputs for them."""
