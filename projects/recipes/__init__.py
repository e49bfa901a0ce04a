"""Recipes for steps in pretrained networks, measured."""
