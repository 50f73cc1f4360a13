-- What wrk sends and counts for benchmarks/serve.py: another sentence with each request.
-- First argument: a file of request bodies, one a line. Prints one line of JSON at the end.
local threads = {}

function setup(thread)
  thread:set("offset", #threads * 97)
  table.insert(threads, thread)
end

function init(arguments)
  bodies = {}
  for line in io.lines(arguments[1]) do bodies[#bodies + 1] = line end
  headers = { ["Content-Type"] = "application/json" }
  number, answered, refused, others = offset, 0, 0, 0
end

function request()
  number = number % #bodies + 1
  return wrk.format("POST", "/translate", headers, bodies[number])
end

function response(status)
  if status == 200 then answered = answered + 1
  elseif status == 429 or status == 503 then refused = refused + 1
  else others = others + 1 end
end

function done(summary, latency)
  local counts = { answered = 0, refused = 0, others = 0 }
  for _, thread in ipairs(threads) do
    for name in pairs(counts) do counts[name] = counts[name] + thread:get(name) end
  end
  local errors = summary.errors.connect + summary.errors.read + summary.errors.write
  -- wrk adds what it would have asked while it waited for a slow answer: these are upper bounds.
  local function seconds(percent) return latency:percentile(percent) / 1e6 end
  print(string.format(
    'JSON {"answered": %d, "refused": %d, "others": %d, "errors": %d, "wall_s": %f, '
      .. '"p50_s": %f, "p95_s": %f}',
    counts.answered, counts.refused, counts.others, errors, summary.duration / 1e6,
    seconds(50), seconds(95)))
end
