"""Adapters of models that take columns of numbers, and the predictors around them."""
