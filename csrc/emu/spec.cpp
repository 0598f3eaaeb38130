// emu/spec.cpp: reads and writes the text of a device spec. Called by everything that opens a
// device; pure, no lock.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "driver/status.hpp"
#include "emu/emulator.hpp"

namespace weave::emu {

namespace {

constexpr std::string_view kPrefix = "emulated:";
constexpr double kMiB = 1024.0 * 1024.0;

struct Named {
  std::string_view name;
  double capacity_bytes;
};
constexpr std::array kNamed = {Named{"h20", 96e9}, Named{"h800", 80e9}, Named{"h100", 80e9},
                               Named{"h200", 141e9}};

struct Unit {
  std::string_view name;
  double factor;
};
// Largest first, so that text() picks the shortest exact spelling.
constexpr std::array kByteUnits = {
    Unit{"TiB", kMiB * kMiB}, Unit{"TB", 1e12},  Unit{"GiB", kMiB * 1024},
    Unit{"GB", 1e9},          Unit{"MiB", kMiB}, Unit{"MB", 1e6},
    Unit{"KiB", 1024},        Unit{"KB", 1e3},   Unit{"B", 1}};
constexpr std::array kTimeUnits = {Unit{"s", 1e9}, Unit{"ms", 1e6}, Unit{"us", 1e3}, Unit{"ns", 1}};

struct Entry {
  std::string_view key;
  std::string_view value;
};

// A user's text as one line of ordinary length, whatever is in it.
std::string shown(std::string_view text) {
  constexpr std::size_t kMax = 200;
  std::string line(text.substr(0, kMax));
  std::ranges::replace_if(
      line, [](char letter) { return static_cast<unsigned char>(letter) < ' '; }, '?');
  return text.size() > kMax ? line + "..." : line;
}

[[noreturn]] void refuse(std::string_view key, std::string_view value, const std::string& allowed) {
  throw UsageError("emulated device: " + shown(key) + "=" + shown(value) +
                   " is refused: allowed is " + allowed);
}

struct Number {
  double value;
  std::string_view unit;
};

std::optional<Number> split(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::general);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  return Number{value, std::string_view(rest, static_cast<std::size_t>(end - rest))};
}

std::optional<double> factor_of(std::span<const Unit> units, std::string_view name) {
  for (const auto& unit : units) {
    if (unit.name == name) return unit.factor;
  }
  return std::nullopt;
}

double plain(const Entry& entry, double low, double high, const std::string& allowed) {
  const auto number = split(entry.value);
  if (!number || !number->unit.empty() || !(number->value >= low && number->value <= high)) {
    refuse(entry.key, entry.value, allowed);
  }
  return number->value;
}

std::uint64_t whole(const Entry& entry, std::uint64_t low, std::uint64_t high) {
  std::uint64_t value = 0;
  const char* end = entry.value.data() + entry.value.size();
  const auto [rest, error] = std::from_chars(entry.value.data(), end, value);
  if (error != std::errc{} || rest != end || value < low || value > high) {
    refuse(entry.key, entry.value,
           "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

constexpr double kLargestBytes = 64 * kMiB * kMiB;  // 64 TiB

std::uint64_t bytes(const Entry& entry, bool zero_allowed) {
  const char* allowed = zero_allowed ? "0 to 64 TiB in B, KB, MB, GB, TB, KiB, MiB, GiB or TiB"
                                     : "1 B to 64 TiB in B, KB, MB, GB, TB, KiB, MiB, GiB or TiB";
  const auto number = split(entry.value);
  if (!number) refuse(entry.key, entry.value, allowed);
  const auto factor = number->unit.empty() ? 1.0 : factor_of(kByteUnits, number->unit);
  const double value = factor ? std::floor(number->value * *factor) : -1;
  if (!(value >= (zero_allowed ? 0 : 1) && value <= kLargestBytes)) {
    refuse(entry.key, entry.value, allowed);
  }
  return static_cast<std::uint64_t>(value);
}

double bandwidth(const Entry& entry) {
  const std::string allowed = "1 KB/s to 100 TB/s, as 55GB/s or 55GB";
  const auto number = split(entry.value);
  if (!number) refuse(entry.key, entry.value, allowed);
  std::string_view unit = number->unit;
  if (unit.ends_with("/s")) unit.remove_suffix(2);
  const auto factor = unit.empty() ? 1.0 : factor_of(kByteUnits, unit);
  const double value = factor ? number->value * *factor : -1;
  if (!(value >= 1e3 && value <= 1e14)) refuse(entry.key, entry.value, allowed);
  return value;
}

std::int64_t latency(const Entry& entry) {
  const std::string allowed = "0 to 10s in ns, us, ms or s";
  const auto number = split(entry.value);
  if (!number) refuse(entry.key, entry.value, allowed);
  const auto factor =
      number->unit.empty() && number->value == 0 ? 1.0 : factor_of(kTimeUnits, number->unit);
  const double value = factor ? std::round(number->value * *factor) : -1;
  if (!(value >= 0 && value <= 1e10)) refuse(entry.key, entry.value, allowed);
  return static_cast<std::int64_t>(value);
}

std::string identity(const Entry& entry) {
  const bool fine = !entry.value.empty() && entry.value.size() <= 64 &&
                    std::ranges::all_of(entry.value, [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
                    });
  if (!fine) refuse(entry.key, entry.value, "1 to 64 letters, digits, '.', '_' or '-'");
  return std::string(entry.value);
}

bool is_stepped(const Entry& entry) {
  if (entry.value != "threads" && entry.value != "stepped") {
    refuse(entry.key, entry.value, "threads or stepped");
  }
  return entry.value == "stepped";
}

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The named spec under this scale and speed, before any other key.
Spec named(const Named& base, double scale, double speed) {
  Spec spec;
  spec.name = base.name;
  spec.scale = scale;
  spec.speed = speed;
  // A power of two, because reservations are aligned to it.
  const auto granularity = std::max(2 * kMiB / scale, static_cast<double>(page_bytes()));
  spec.granularity_bytes = std::bit_floor(static_cast<std::uint64_t>(granularity));
  spec.block_bytes =
      round_up(std::max(static_cast<std::uint64_t>(std::ceil(64 * kMiB / scale)), page_bytes()),
               spec.granularity_bytes);
  const auto capacity = static_cast<std::uint64_t>(base.capacity_bytes / scale);
  spec.capacity_bytes = capacity / spec.granularity_bytes * spec.granularity_bytes;
  spec.context_bytes = static_cast<std::uint64_t>(0.5e9 / scale);
  spec.h2d_bytes_per_s = spec.d2h_bytes_per_s = 55e9 / scale * speed;
  spec.pageable_bytes_per_s = 12e9 / scale * speed;
  spec.duplex = 0.75;
  spec.engines = 1;
  spec.copy_ns = 5'000;
  spec.map_ns = 20'000;
  spec.access_ns = 23'000;
  spec.unmap_ns = 20'000;
  spec.create_ns = 200'000;
  return spec;
}

const Named& find_named(std::string_view name) {
  std::string known;
  for (const auto& base : kNamed) {
    if (base.name == name) return base;
    known += (known.empty() ? "" : ", ") + std::string(base.name);
  }
  throw UsageError("emulated device: the name '" + shown(name) +
                   "' is unknown: allowed is one of " + known);
}

std::vector<Entry> entries(std::string_view text) {
  std::vector<Entry> result;
  while (!text.empty()) {
    const auto end = std::min(text.find('&'), text.size());
    const auto part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      throw UsageError("emulated device: '" + shown(part) +
                       "' is refused: allowed is key=value, several joined by '&'");
    }
    const Entry entry{part.substr(0, equals), part.substr(equals + 1)};
    for (const auto& earlier : result) {
      if (earlier.key == entry.key) refuse(entry.key, entry.value, "each key once");
    }
    result.push_back(entry);
  }
  return result;
}

// Applies one key other than scale and speed. False: no such key.
bool apply(Spec& spec, const Entry& entry) {
  const auto key = entry.key;
  if (key == "capacity")
    spec.capacity_bytes = bytes(entry, false);
  else if (key == "granularity")
    spec.granularity_bytes = bytes(entry, false);
  else if (key == "block")
    spec.block_bytes = bytes(entry, false);
  else if (key == "context")
    spec.context_bytes = bytes(entry, true);
  else if (key == "unmanaged")
    spec.unmanaged_bytes = bytes(entry, true);
  else if (key == "h2d")
    spec.h2d_bytes_per_s = bandwidth(entry);
  else if (key == "d2h")
    spec.d2h_bytes_per_s = bandwidth(entry);
  else if (key == "pageable")
    spec.pageable_bytes_per_s = bandwidth(entry);
  else if (key == "duplex")
    spec.duplex = plain(entry, 0.01, 1, "0.01 to 1");
  else if (key == "engines")
    spec.engines = static_cast<int>(whole(entry, 1, 4));
  else if (key == "integrated")
    spec.integrated = whole(entry, 0, 1) == 1;
  else if (key == "engine")
    spec.stepped = is_stepped(entry);
  else if (key == "copy")
    spec.copy_ns = latency(entry);
  else if (key == "map")
    spec.map_ns = latency(entry);
  else if (key == "access")
    spec.access_ns = latency(entry);
  else if (key == "unmap")
    spec.unmap_ns = latency(entry);
  else if (key == "create")
    spec.create_ns = latency(entry);
  else if (key == "register")
    spec.register_ns = latency(entry);
  else if (key == "seed")
    spec.seed = whole(entry, 0, std::numeric_limits<std::uint64_t>::max());
  else if (key == "id")
    spec.id = identity(entry);
  else
    return false;
  return true;
}

const Entry* entry_of(const std::vector<Entry>& given, std::string_view key) {
  const auto found = std::ranges::find(given, key, &Entry::key);
  return found == given.end() ? nullptr : &*found;
}

// Rounds what was not given, refuses what does not fit together.
void settle(Spec& spec, const std::vector<Entry>& given) {
  const auto text_of = [&](std::string_view key, std::uint64_t value) {
    const Entry* entry = entry_of(given, key);
    return entry != nullptr ? std::string(entry->value) : std::to_string(value) + "B";
  };
  const auto granularity = spec.granularity_bytes;
  if (!std::has_single_bit(granularity) || granularity < page_bytes()) {
    refuse("granularity", text_of("granularity", granularity),
           "a power of two from the host page, " + std::to_string(page_bytes()) + "B");
  }
  if (entry_of(given, "block") == nullptr) {
    spec.block_bytes = round_up(spec.block_bytes, granularity);
  } else if (spec.block_bytes % granularity != 0) {
    refuse("block", text_of("block", spec.block_bytes),
           "a multiple of the granularity, " + std::to_string(granularity) + "B");
  }
  const auto capacity = spec.capacity_bytes;
  spec.capacity_bytes = capacity / granularity * granularity;
  // Bounded each, so that the sum cannot wrap.
  const auto taken = spec.context_bytes + spec.unmanaged_bytes;
  if (spec.capacity_bytes < taken || spec.capacity_bytes - taken < spec.block_bytes) {
    refuse("capacity", text_of("capacity", capacity),
           "at least context + unmanaged + one block, " + std::to_string(taken + spec.block_bytes) +
               "B");
  }
}

std::string fixed(double value) {
  std::array<char, 400> buffer{};
  const auto format = std::chars_format::fixed;  // an exponent is no way to write 100 MB
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
  return {buffer.data(), end};
}

std::string written(double value, std::span<const Unit> units) {
  if (value == 0) return "0";
  for (const auto& unit : units) {
    const double quotient = value / unit.factor;
    if (std::nearbyint(quotient) == quotient && quotient * unit.factor == value) {
      return fixed(quotient) + std::string(unit.name);
    }
  }
  return fixed(value) + std::string(units.back().name);
}

}  // namespace

Spec Spec::parse(std::string_view text) {
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  const auto mark = std::min(text.find('?'), text.size());
  const Named& base = find_named(text.substr(0, mark));
  const auto given = entries(text.substr(std::min(mark + 1, text.size())));
  const Entry* scale = entry_of(given, "scale");
  const Entry* speed = entry_of(given, "speed");
  Spec spec = named(base, scale != nullptr ? plain(*scale, 1, 1e6, "1 to 1000000") : 1.0,
                    speed != nullptr ? plain(*speed, 1e-3, 1e6, "0.001 to 1000000") : 1.0);
  for (const auto& entry : given) {
    if (&entry == scale || &entry == speed || apply(spec, entry)) continue;
    refuse(
        entry.key, entry.value,
        "one of the keys scale, speed, capacity, granularity, block, h2d, d2h, duplex, "
        "pageable, context, unmanaged, engine, engines, integrated, id, seed, copy, map, access, "
        "unmap, create, register");
  }
  settle(spec, given);
  return spec;
}

std::string Spec::text() const {
  const Spec base = named(find_named(name), scale, speed);
  std::string result =
      std::string(kPrefix) + name + "?scale=" + fixed(scale) + "&speed=" + fixed(speed);
  const auto add = [&](const char* key, const std::string& value, bool differs) {
    if (differs) result += "&" + std::string(key) + "=" + value;
  };
  const auto add_bytes = [&](const char* key, std::uint64_t Spec::* field) {
    add(key, written(static_cast<double>(this->*field), kByteUnits), this->*field != base.*field);
  };
  const auto add_rate = [&](const char* key, double Spec::* field) {
    add(key, written(this->*field, kByteUnits) + "/s", this->*field != base.*field);
  };
  const auto add_time = [&](const char* key, std::int64_t Spec::* field) {
    add(key, written(static_cast<double>(this->*field), kTimeUnits), this->*field != base.*field);
  };
  add_bytes("capacity", &Spec::capacity_bytes);
  add_bytes("granularity", &Spec::granularity_bytes);
  add_bytes("block", &Spec::block_bytes);
  add_rate("h2d", &Spec::h2d_bytes_per_s);
  add_rate("d2h", &Spec::d2h_bytes_per_s);
  add("duplex", fixed(duplex), duplex != base.duplex);
  add_rate("pageable", &Spec::pageable_bytes_per_s);
  add_bytes("context", &Spec::context_bytes);
  add_bytes("unmanaged", &Spec::unmanaged_bytes);
  add("engines", std::to_string(engines), engines != base.engines);
  add("integrated", "1", integrated);
  add("engine", "stepped", stepped);
  add_time("copy", &Spec::copy_ns);
  add_time("map", &Spec::map_ns);
  add_time("access", &Spec::access_ns);
  add_time("unmap", &Spec::unmap_ns);
  add_time("create", &Spec::create_ns);
  add_time("register", &Spec::register_ns);
  add("id", id, !id.empty());
  add("seed", std::to_string(seed), seed != 0);
  return result;
}

}  // namespace weave::emu
