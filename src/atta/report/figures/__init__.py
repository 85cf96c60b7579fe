"""Every chart of the project, in Altair: functions of plain data that return charts. Only `write.picture` writes a file.

probabilities ──► reliability: reliability, compare_plot                                                ┐
detail        ──► reliability: reliability_of · detail: confidence_histogram, weights, shares, per_class ├─► chart ──► picture
rows          ──► comparison: ranking, sizes, entropy, cost                                             │
drift         ──► drift: drift                                                                          ┘

theme      how charts look, in light and dark; the one place that knows altair
parts      what charts share: axes, legends, headings
catalogue  FIGURES and `figure`: all of the above from results, by name
write      `picture`
"""
