-- The scripts run in the Lua 5.1 of Redis, with these globals and no more; any other global is an error there.
std = {
  read_globals = {
    "redis", "KEYS", "ARGV",
    "math", "string", "table", "tonumber", "tostring", "type", "pairs", "ipairs", "unpack", "select", "next",
  },
}
max_line_length = 120
-- It has the scripts' lines, indented.
files["scripts/functions.lua"] = {max_line_length = 122}
