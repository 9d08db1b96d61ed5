# Ninja's "[12/340] ..." lines, thinned to one a tenth; everything else (warnings, errors) passes.
/^-- / { next }  # configuring again
match($0, /^\[[0-9]+\/[0-9]+\]/) {
  split(substr($0, 2, RLENGTH - 2), count, "/")
  tenth = int(10 * count[1] / count[2])
  if (tenth != last || count[1] == count[2]) { printf "   %s\n", substr($0, 1, RLENGTH); fflush() }
  last = tenth
  next
}
{ print; fflush(); if ($0 ~ /FAILED|ninja: build stopped/) failed = 1 }
END { exit failed }
