// What the engine loop owns. Private to the engine's own sources.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "server/engine/asides.h"
#include "server/engine/cataloguer.h"
#include "server/engine/controls.h"
#include "server/engine/copy_pool.h"
#include "server/engine/device_copies.h"
#include "server/engine/engine.h"
#include "server/engine/evictor.h"
#include "server/engine/index_walks.h"
#include "server/engine/leases.h"
#include "server/engine/lookups.h"
#include "server/engine/read_ops.h"
#include "server/engine/regions.h"
#include "server/engine/restorer.h"
#include "server/engine/scrubber.h"
#include "server/engine/sessions.h"
#include "server/engine/snapshotter.h"
#include "server/engine/staging.h"
#include "server/engine/store_ops.h"
#include "server/sched/slot_allocator.h"
#include "server/store/chunk_index.h"

namespace kvstream::engine {

// What the loop owns. Members are destroyed in reverse order, which matters for the copy pool: it
// finishes its jobs, and they point into the staging pool and into buffers of `sessions`.
struct Engine::State {
  State(Engine* engine, std::vector<tier::Tier*> tier_list, HandoffPeer* handoff)
      : tiers(std::move(tier_list)),
        slots(engine->pool_->size(), engine->options_.pool_reserved_bytes),
        unmapper(&engine->stats_.unmapping_bytes),
        sessions(&engine->stats_, handoff, &unmapper, engine->gpus_),
        regions(
            {engine->gpus_, engine, &sessions, &engine->stats_, engine->options_.direct_bytes_min}),
        leases(&index),
        asides(tiers, &engine->stats_),
        evictor({tiers, &index, &asides, &engine->stats_}, engine->options_.capacities),
        staging({tiers, &slots, engine->pool_->bytes().data(), &index, &asides, &evictor,
                 &engine->stats_,
                 engine->options_.cache.has_value()
                     ? std::make_unique<DramCache>(*engine->options_.cache, slots)
                     : nullptr,
                 SharedOf(engine->options_.capacities)},
                engine->options_.writes),
        copies(engine->options_.copy_threads,
               [engine](const CopyResult& result) { engine->mailbox_.Post(result); }),
        device({engine->gpus_, &sessions, &engine->stats_, engine->options_.landing_ack}),
        reads({tiers, &slots, engine->pool_->bytes().data(), &index, &staging, &asides, &copies,
               &device, &sessions, &engine->stats_},
              engine->options_.router),
        stores({&slots, engine->pool_->bytes().data(), &index, &reads.router(), &staging, &copies,
                &device, &sessions, &engine->stats_}),
        lookups({&index, &leases, &sessions, &engine->stats_, &reads.router(),
                 static_cast<uint32_t>(tiers.size())}),
        keeper({tiers, &reads, &staging, &engine->stats_, engine->options_.copy_threads > 0},
               engine->options_.tier_health),
        controls({tiers, &reads, &keeper, &engine->stats_}),
        scrubber({tiers, &index, &asides, engine, &engine->stats_}, engine->options_.scrub),
        restorer({tiers, &index, &asides, &evictor, engine, &engine->stats_},
                 engine->options_.restart, engine->options_.capacities),
        snapshotter({tiers, &index, &restorer, &engine->stats_}, engine->options_.restart),
        cataloguer({tiers, &index, &evictor, &restorer, engine, &engine->stats_},
                   engine->options_.catalog, engine->options_.capacities),
        index_walks({tiers, &index, &evictor, &staging, &engine->stats_}) {
    asides.SetListener(&cataloguer);
    lookups.SetCataloguer(&cataloguer);
    slots.SetReclaim(
        [this](sched::Arena arena) { return staging.Evict(arena) || reads.GiveUpKept(arena); });
  }

  std::vector<tier::Tier*> tiers;
  sched::SlotAllocator slots;
  store::ChunkIndex index;
  memory::Unmapper unmapper;
  Sessions sessions;
  Regions regions;
  Leases leases;
  Asides asides;
  Evictor evictor;
  Staging staging;
  CopyPool copies;
  DeviceCopies device;
  ReadOps reads;
  StoreOps stores;
  Lookups lookups;
  TierKeeper keeper;
  Controls controls;
  Scrubber scrubber;
  Restorer restorer;
  Snapshotter snapshotter;
  Cataloguer cataloguer;
  IndexWalks index_walks;
  std::vector<DeviceResult> device_results;  // Of DeliverDeviceCopies.
  uint64_t next_operation = 1;
  bool sessions_ended = false;
};

}  // namespace kvstream::engine
