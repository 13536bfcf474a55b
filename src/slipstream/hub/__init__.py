"""The model store: known models, obtaining them, and finding them again. Imports nothing of the package but errors."""
