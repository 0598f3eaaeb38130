// core/device.hpp: one device with its tenants, and every public operation on them. Each operation
// is a transaction under the device's lock: it completes, or it throws and leaves one of the states
// that transaction.hpp names.
//
// An operation that touches slots is Foreground: the background (background.hpp) holds still for
// it.
//
// Lock order: closing_ -> HostPool's list of spillers -> Device::mutex_ -> HostPool -> Drain,
// Publication, Driver's graveyard, Region's space. Nothing calls back up. Tenants, regions and
// spans may outlive the device; then they are closed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/background.hpp"
#include "core/drain.hpp"
#include "core/host_pool.hpp"
#include "core/plain_link.hpp"
#include "core/publication.hpp"
#include "core/transaction.hpp"

namespace weave {

class Device : private Spiller {
 public:
  struct Options {
    Bytes block_bytes = Bytes{64} << 20;  // rounded up to the device's granularity
    Bytes usable_bytes = 0;               // at most this much for tenants; 0: all that is free
    Bytes host_budget = 0;                // for a pool of its own; 0: what the host has
    std::shared_ptr<HostPool> host_pool;  // share one between the devices of a process
    bool background_thread = true;        // else run_background() does its work
    bool verify = false;                  // see set_verify()
    std::string spill_directory;          // idle tenants go there over the budget; empty: refused
  };
  struct Stats {
    int blocks_created = 0, blocks_free = 0, blocks_total = 0;  // total: F
    std::uint64_t switches = 0, noop_suspends = 0, noop_resumes = 0;
    Bytes bytes_out = 0, bytes_in = 0;
    int blocks_released = 0;  // given back by trim() and not created again
    Bytes bytes_trimmed = 0;  // ever
    Bytes bytes_background_out = 0, bytes_background_in = 0;
    std::uint64_t background_errors = 0;
    std::uint64_t blocks_beyond_plan = 0;
    std::uint64_t spills = 0, loads = 0;
    Bytes bytes_spilled = 0, bytes_loaded = 0;  // ever
    Bytes bytes_in_files = 0;                   // now
  };

  // Retains the primary context and sizes the pool. Throws DriverError, Refusal, UsageError.
  Device(DriverRef driver, Options options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::shared_ptr<Tenant> add_tenant(const std::string& name, const std::string& job);
  // Get or create. reserve 0: as much as the device has. Throws UsageError if the policy differs.
  std::shared_ptr<Region> region(const std::shared_ptr<Tenant>& tenant, const std::string& tag,
                                 Policy policy, Bytes reserve);
  // Space for `bytes`, growing the region by whole blocks from free frames, else from idle tenants.
  // Throws Refusal (not_resident, growth_refused, host_memory), DriverError.
  std::shared_ptr<Span> allocate(const std::shared_ptr<Region>& region, Bytes bytes,
                                 Bytes alignment);
  // Grow so that the next allocate() calls, up to `bytes` in all, need not.
  void prepare(const std::shared_ptr<Region>& region, Bytes bytes);

  // The owner will not change the region's bytes until mark_dirty(): they are copied out once, and
  // later departures move nothing out. New space in it is copied out once more. Both are for keep
  // regions; mark_dirty() while the tenant runs also takes back what was written back early, and
  // cancels what is still to be.
  void mark_clean(const std::shared_ptr<Region>& region);
  void mark_dirty(const std::shared_ptr<Region>& region);
  // Counted. While pinned the region's blocks stay on the device: others cannot have them, and
  // suspending the tenant throws Refusal (region_pinned). unpin() throws UsageError at 0.
  void pin(const std::shared_ptr<Region>& region);
  void unpin(const std::shared_ptr<Region>& region);
  // What blocks hold that come to a discard region from now on, by memsets within the switch.
  void set_fill(const std::shared_ptr<Region>& region, Fill fill);
  // Only these bytes of a keep region are worth copying, until it is called again; nothing: all of
  // them. Pinned memory for just these is taken, or given back. The pages that it had already:
  // host copies are as valid as they were. Throws UsageError, Refusal (not_resident, host_memory),
  // DriverError; then the old ones hold.
  void set_pages(const std::shared_ptr<Region>& region,
                 const std::optional<std::vector<Piece>>& pages);
  // The pages of a region that has some are in use no more, or others are: all of it counts until
  // set_pages(). If it must leave before, it takes pinned memory for all of it. Throws Refusal
  // (not_resident), UsageError.
  void forget_pages(const std::shared_ptr<Region>& region);
  // Compare whatever is copied in a switch, by checksums (checksum.hpp) and by reading it back; a
  // difference throws Refusal (verify_failed) and the switch is rolled back. Takes one block of
  // pinned memory. Throws Refusal (host_memory), DriverError.
  void set_verify(bool on);
  bool verifies() const;

  // The next version of a tenant's reload regions, see publication.hpp; in any state of the tenant
  // but FAILED, while another one may run here. One at a time. A commit is all or nothing, also
  // where it is of several tenants on several devices; a tenant that runs then keeps its version
  // until it next comes in. Throw UsageError, Refusal (host_memory), DriverError; then nothing has
  // changed.
  struct Version {
    Device* device;  // of the publication's tenant
    std::shared_ptr<Publication> publication;
  };
  std::shared_ptr<Publication> begin_publish(const std::shared_ptr<Tenant>& tenant);
  static void commit_together(const std::vector<Version>& versions);
  void commit(const std::shared_ptr<Publication>& publication) {
    commit_together({{this, publication}});
  }
  void abort(const std::shared_ptr<Publication>& publication) noexcept;
  // Copy bytes of a region whose tenant runs here into a version that is being published, by the
  // engine. Throws UsageError, Refusal, DriverError; then they do not count as written.
  void read(const std::shared_ptr<Region>& region, Bytes offset, Bytes bytes, Publication& to,
            const std::shared_ptr<Region>& to_region, Bytes to_offset);

  // With tags a tenant runs with part of its regions: one that is idle comes in with these alone,
  // one that runs gets them in addition, or gives them up (with the last one it stops). What is
  // there already, or away already, is a counted no-op. Throws UsageError for a tag that the tenant
  // does not have.
  SwitchReport resume(const std::shared_ptr<Tenant>& tenant, double drain_timeout_s,
                      const Tags& tags = {});
  SwitchReport suspend(const std::shared_ptr<Tenant>& tenant, double drain_timeout_s,
                       const Tags& tags = {});
  SwitchReport hand_over(const std::shared_ptr<Tenant>& outgoing,
                         const std::shared_ptr<Tenant>& incoming, double drain_timeout_s,
                         const Tags& tags = {});
  // Stop running; slots stay until somebody needs their frames.
  void release(const std::shared_ptr<Tenant>& tenant);
  // Move what an idle tenant has in pinned memory to a file in the spill directory, all of it or
  // nothing; it comes back when the tenant resumes. What is still on the device stays there. Done
  // by itself when pinned memory would exceed its budget. Returns the bytes. Throws UsageError,
  // Refusal (state_file).
  Bytes spill(const std::shared_ptr<Tenant>& tenant);

  // A region that rescue_into() may give, and its size.
  struct Rescuable {
    std::string tag;
    Bytes bytes = 0;
  };
  std::vector<Rescuable> rescuable(const std::shared_ptr<Tenant>& tenant);
  // The contents of one of them. False when they are not complete, or not of that size.
  bool rescue_into(const std::shared_ptr<Tenant>& tenant, const std::string& tag,
                   std::span<std::byte> into);
  // Every region that is complete, to a safetensors file; nothing is held in memory twice. Returns
  // the tags. Throws Refusal (state_file).
  std::vector<std::string> rescue_to(const std::shared_ptr<Tenant>& tenant, const std::string& path,
                                     const StateWriter::Metadata& metadata);
  // Regions whose contents are complete, by tag, as far as the driver still lets them be read.
  std::map<std::string, std::vector<std::byte>> rescue(const std::shared_ptr<Tenant>& tenant);

  // What may leave, and in which order, until the next plan (residency.hpp). Changes targets only;
  // nothing moves by this. Throws UsageError.
  void set_plan(const std::map<std::shared_ptr<Tenant>, std::size_t>& movable,
                const std::vector<std::shared_ptr<Tenant>>& next_use);
  // Copies beside the phase that runs (background.hpp). They return at once; see the handle.
  // prefetch: bring at most `limit` bytes (0: all that fits) of an idle tenant in; those who make
  // room come after it in next_use, or are not in it.
  // write_back: copy out what will not change again in this phase, of a keep region as it is now.
  // The copies are valid until the tenant starts again, or until mark_dirty(); those of a block
  // until something is allocated in it. Throws UsageError, Refusal (not_resident).
  std::shared_ptr<BackgroundCopy> prefetch(const std::shared_ptr<Tenant>& tenant,
                                           const std::vector<std::shared_ptr<Tenant>>& next_use,
                                           Bytes limit);
  std::shared_ptr<BackgroundCopy> write_back(const std::shared_ptr<Tenant>& tenant,
                                             const std::string& tag);
  void cancel(const std::shared_ptr<BackgroundCopy>& copy) noexcept;
  // Do what was asked for in the caller's thread. pre: Options::background_thread is false.
  void run_background();

  // Measure the link with plain copies of up to `bytes` per direction; reports carry limit_s from
  // then on. pre: no tenant holds frames. Throws UsageError, DriverError.
  LinkRates calibrate(Bytes bytes);
  // Take over rates that calibrate() gave on such a device before. Throws UsageError if they are
  // none.
  void use_rates(const LinkRates& rates);
  // What reports are held against: empty until calibrate() or use_rates().
  std::optional<LinkRates> rates() const;
  // By which share a phase that only writes memory takes longer, at least, while plain copies of
  // blocks run both ways, up to `bytes` each; a phase that does less loses less. Sixteen
  // measurements take about `work_s` each. Nothing where the driver launches no kernels. pre: no
  // tenant holds frames. Throws UsageError, DriverError, Refusal.
  std::optional<double> slowdown(Bytes bytes, double work_s = 0.05);
  // Seconds for plain copies of so many bytes (whole blocks) both ways at once. The memory for it
  // is kept until the device closes. pre: twice the larger one is free. Throws UsageError.
  double plain_copy(Bytes bytes_out, Bytes bytes_in);

  // Give device memory back to the driver for others: free blocks, and where those are not enough
  // what idle tenants can discard. Returns the bytes that the driver has taken back, which may be
  // fewer. Blocks are created again when somebody needs them and the driver has the memory; until
  // then usable() is smaller. Throws DriverError, Refusal (drain_timeout).
  Bytes trim(Bytes bytes);
  // From now on blocks take at most so many bytes of the device, because others need more or less
  // of it: F of the design, never more than when the device was opened, never less than its largest
  // tenant has. Blocks beyond it go back to the driver, those of idle tenants after they were
  // copied out as in a switch; what runs, or is pinned, stays, and so does that excess until the
  // next call. Returns what blocks may take, or still do where that is more. What it throws leaves
  // F as it was. Throws DriverError, Refusal (drain_timeout, verify_failed).
  Bytes set_usable(Bytes bytes);

  // Seconds to pin so many bytes the plain way: one mapping, touched page by page by this thread
  // and registered as a whole. Given back at once. The yardstick of the pool's benchmark. Throws
  // UsageError, Refusal (host_memory), DriverError.
  double plain_pin(Bytes bytes);

  void close_tenant(const std::shared_ptr<Tenant>& tenant) noexcept;
  // Ends everything; never throws, twice is fine: again tries what the driver refused. Later
  // operations throw UsageError. Nothing in a forked child, which has neither a driver nor the
  // device's threads; there it must not be destroyed either.
  void close() noexcept;

  // Where a tenant is now.
  struct Place {
    std::size_t blocks = 0;
    std::size_t blocks_on_device = 0;
    std::size_t blocks_spilled = 0;
    bool all_mapped = false;
    std::vector<std::shared_ptr<Region>> regions;
  };
  Place place(const std::shared_ptr<Tenant>& tenant) const;

  // What the driver says of the device now. ours: blocks made for tenants.
  struct Memory {
    Bytes total = 0, free = 0, ours = 0;
  };
  Memory memory() const;  // throws DriverError, UsageError

  bool closed() const;
  Stats stats() const;
  std::vector<std::shared_ptr<Tenant>> tenants() const;
  Bytes capacity() const { return capacity_; }
  Bytes usable() const;
  Bytes block_bytes() const { return block_bytes_; }
  const std::shared_ptr<HostPool>& host_pool() const { return host_pool_; }
  int numa_node() const { return host_node_; }  // for HostPool::reserve
  const Driver& driver() const { return *driver_; }
  const DriverRef& driver_ref() const { return driver_; }

 private:
  // The lock, taken by an operation that touches slots: the background holds still meanwhile.
  class Foreground {
   public:
    explicit Foreground(Device& device);
    ~Foreground();
    Foreground(const Foreground&) = delete;
    Foreground& operator=(const Foreground&) = delete;

   private:
    Device& device_;
    std::unique_lock<std::mutex> lock_;
  };
  Transaction::Tools tools() { return {*driver_, *frames_, *engine_, staging_.data()}; }
  void require_open() const;
  void require_empty(const char* operation) const;
  void require_usable(const Tenant& tenant) const;
  void require_running(const Region& region) const;
  std::vector<const Tenant*> order_of(const std::vector<std::shared_ptr<Tenant>>& tenants) const;
  std::shared_ptr<Span> take(const std::shared_ptr<Region>& region, Bytes bytes, Bytes alignment);
  std::shared_ptr<Tenant> require_tenant(const Region& region) const;
  std::shared_ptr<Publication> begin_publish_once(const std::shared_ptr<Tenant>& tenant);
  void apply_committed(Tenant& tenant);
  void place_pages(Region& region, std::optional<PageTable> pages);
  bool place_outdated(const Tenant& incoming);
  void drop_spare(std::vector<NextVersion>& parts) noexcept;
  void require_unpinned(const Tenant& tenant, const std::vector<Region*>& regions) const;
  void retry_unfinished() noexcept;
  void note_background(Stats& stats) const;
  bool is_unfinished(const Tenant& tenant) const;
  void grow(const std::shared_ptr<Region>& region, Bytes bytes_more);
  Bytes release_frames(int count, bool withhold) noexcept;
  std::vector<SlotRef> make_room(const Tenant& incoming, std::size_t frames_needed);
  SwitchReport bring_in(const std::vector<SlotRef>& ins, const std::shared_ptr<Tenant>& outgoing,
                        Tenant& incoming, double drain_timeout_s);
  SwitchReport transfer(std::vector<SlotRef> outs, std::vector<SlotRef> ins,
                        const std::shared_ptr<Tenant>& outgoing, const Tenant* incoming,
                        double drain_timeout_s);
  [[noreturn]] void roll_back(std::unique_ptr<Transaction> transaction,
                              const std::shared_ptr<Tenant>& outgoing);
  bool needs_drain(const std::vector<SlotRef>& outs, const std::vector<SlotRef>& ins,
                   const std::shared_ptr<Tenant>& outgoing, const Tenant* incoming) const;
  void drain(double timeout_s);
  void start(Tenant& tenant, const std::vector<Region*>& entered);
  void stop(Tenant& tenant);
  void drop_slots(Tenant& tenant, bool settled) noexcept;
  bool read_out(const Slot& slot, std::byte* into) noexcept;
  Extent staging_for(const Region& region) noexcept;
  template <class Action>
  auto reading(const std::shared_ptr<Tenant>& tenant, Action action);
  bool bring_to_host(Region& region, bool readable);
  template <class Take>
  bool read_region(Region& region, bool readable, Take take);

  // Spilling (spill.cpp). The first runs `action`, and again after each tenant that was spilled to
  // make room in pinned memory for `keep`; it is called without the lock.
  template <class Action>
  auto with_host_room(const Tenant* keep, Action action);
  std::optional<Bytes> spill_for(const Refusal& refusal, const Tenant* keep);
  static const char* advice(bool spills);
  std::optional<Candidate> coldest(const void* keep, bool evict) override;
  Bytes spill_coldest(const void* keep, bool evict) override;
  std::shared_ptr<Tenant> find_coldest(const void* keep, bool evict) const;
  Bytes spill_slots(Tenant& tenant);
  void load_spilled(Tenant& tenant);
  SwitchReport suspend_once(const std::shared_ptr<Tenant>& tenant, double drain_timeout_s,
                            const Tags& tags);
  SwitchReport hand_over_once(const std::shared_ptr<Tenant>& outgoing,
                              const std::shared_ptr<Tenant>& incoming, double drain_timeout_s,
                              const Tags& tags);

  std::mutex closing_;  // held by close(), above all others
  mutable std::mutex mutex_;
  const int process_;  // that opened it
  DriverRef driver_;
  ContextRef context_;
  Bytes capacity_ = 0;
  Bytes block_bytes_ = 0;
  std::shared_ptr<HostPool> host_pool_;
  std::unique_ptr<Frames> frames_;
  std::unique_ptr<CopyEngine> engine_;
  std::unique_ptr<Drain> drain_;
  std::unique_ptr<PlainLink> plain_link_;
  std::vector<std::shared_ptr<Tenant>> tenants_;
  ResidencyPlan plan_;
  std::unique_ptr<Background> background_;
  std::int64_t operation_began_ns_ = 0;                   // of the Foreground that holds the lock
  std::vector<std::unique_ptr<Transaction>> unfinished_;  // undos that could not be finished yet
  std::vector<std::unique_ptr<PlainLink>> stuck_links_;   // with copies that nobody could wait for
  Limbo limbo_;                                           // what such copies may still touch
  Extent staging_;                                        // while copies are verified
  std::optional<LinkRates> rates_;
  Turns turns_;
  std::string spill_directory_;
  int host_node_ = HostPool::kAnyNode;  // where its tenants' pinned memory shall be
  Stats stats_;
};

template <class Action>
auto Device::with_host_room(const Tenant* keep, Action action) {
  constexpr int kTries = 64;  // against two devices that spill each other's tenants for ever
  bool spilled = true;
  for (int left = kTries;; --left) {
    try {
      return action();
    } catch (const Refusal& refusal) {
      const auto bytes = spill_for(refusal, keep);
      // Once more where nobody had anything: who gave memory back meanwhile, by closing say, has
      // nothing to spill.
      if (left == 0 || !bytes || (*bytes == 0 && !spilled)) {
        Refusal told = refusal;
        if (refusal.kind == Refusal::Kind::host_memory) told.text += advice(bytes.has_value());
        throw told;
      }
      spilled = *bytes > 0;
    }
  }
}

}  // namespace weave
