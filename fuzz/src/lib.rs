//! Fuzz targets, and the replay of their corpus.
