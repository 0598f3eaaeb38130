// driver/clock.hpp: the system clock that fills a Table's clock entries. Every other file asks the
// Table it was given, so a test can move time.
#pragma once

#include <cstdint>

namespace weave::cu {

std::int64_t system_now_ns();
void system_sleep_until_ns(std::int64_t deadline_ns);

}  // namespace weave::cu
