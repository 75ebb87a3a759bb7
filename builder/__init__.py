"""Saguaro: publish a family of small on-device language models to a static web site."""
