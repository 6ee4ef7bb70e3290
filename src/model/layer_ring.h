#pragma once
// Layers that are read from the disk while the pass computes those before: slots in memory that threads fill
// in the order of the pass, round and round, and that the pass gives back one after the other. (Private to
// the room.)
//
// A turn is a slice's place in the pass. Turn t always uses slot t % slots, so that pointers into a slice
// stay what they are: the turns of a pass are made a multiple of the slots by empty ones at its end. A turn
// counted from the start, c, is read once c - slots was left.

#include "base/accounts.h"
#include "base/result.h"
#include "model/layer_file.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace tally::model {

// Since start.
struct RingStats {
  uint64_t read_bytes = 0;
  double read_s = 0;    // in which at least one read was under way
  double waited_s = 0;  // of passes for bytes
  uint64_t passes = 0;
};

class LayerRing {
 public:
  // One is computed, and two are under way, as a disk is quicker with two.
  static constexpr uint32_t kSlotsMax = 3, kReaders = 2;
  static uint32_t slots_for(uint32_t slices) { return std::min(slices, kSlotsMax); }

  // Reads begin at once. Requires: `memory` holds slots_for(slices) times `slot_bytes`.
  LayerRing(LayerFile file, std::span<std::byte> memory, uint64_t slot_bytes);
  ~LayerRing();

  // Waits until the slice of the turn is in its slot. False: it will never be; see fault(). Turns come in
  // ascending order.
  bool enter(uint32_t turn);
  // The pass is done with all turns up to this one.
  void leave(uint32_t turn);
  // The pass is over: the next begins with turn 0.
  void end_pass();

  // From any thread: reads that have not begun never will, which is a fault. Who is in enter() waits for
  // those under way.
  void give_up();
  std::optional<base::Error> fault() const;
  RingStats stats() const;
  const LayerFile& file() const { return file_; }
  uint64_t pass_bytes() const;  // that are read for a pass

 private:
  void read();

  const LayerFile file_;
  const std::span<std::byte> memory_;
  const uint64_t slot_bytes_;
  const uint32_t slots_, turns_;  // turns_: of a pass, the empty ones too

  mutable std::mutex mutex_;
  std::condition_variable room_, filled_;
  // Guarded by mutex_.
  uint64_t next_ = 0, left_ = 0,
           pass_ = 0;              // turns counted from the start: to be read, given back, of turn 0
  std::vector<uint64_t> in_slot_;  // the turn that a slot holds, and one; 0: none yet
  std::optional<base::Error> fault_;
  RingStats stats_;
  uint32_t reading_ = 0;
  int64_t reading_since_us_ = 0;
  bool is_over_ = false;

  std::vector<std::thread> readers_;
};

}  // namespace tally::model
