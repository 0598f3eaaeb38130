#include "core/report.hpp"

#include <algorithm>

namespace weave {

bool is_sequential_faster(const LinkRates& rates) {
  constexpr double kNoise = 1.02;  // below that the two are the same, and both at once it is
  const auto per_byte = [](double rate) { return 1 / rate; };
  return std::max(per_byte(rates.d2h_duplex), per_byte(rates.h2d_duplex)) >
         kNoise * (per_byte(rates.d2h) + per_byte(rates.h2d));
}

double limit_seconds(const LinkRates& rates, Bytes out, Bytes in) {
  const auto out_bytes = static_cast<double>(out);
  const auto in_bytes = static_cast<double>(in);
  const double both = std::min(out_bytes / rates.d2h_duplex, in_bytes / rates.h2d_duplex);
  const double rest = std::max((out_bytes - both * rates.d2h_duplex) / rates.d2h,
                               (in_bytes - both * rates.h2d_duplex) / rates.h2d);
  const double in_turn = out_bytes / rates.d2h + in_bytes / rates.h2d;
  return std::min(both + std::max(rest, 0.0), in_turn);
}

}  // namespace weave
