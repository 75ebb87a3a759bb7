"""The static site: manifest, content-addressed parts, pack, verify, the development server."""
