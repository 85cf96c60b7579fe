"""What every other package uses: errors, types, files, settings, progress."""
