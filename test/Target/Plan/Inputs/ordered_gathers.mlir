// Three units: the second and third are gathered together, when the first is given up.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["u" : 8 at 0 frozen], numel = 8, padded = 8>
fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["v" : 8 at 0 frozen], numel = 8, padded = 8>
fsdp.unit @w on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0 frozen], numel = 8, padded = 8>
!p = !fsdp.shard<8xf32, 2>
!g = !fsdp.gathered<8xf32>
!f = !fsdp.future<!g>
!t = tensor<8xf32>
func.func @step(%pu: !p {fsdp.state = #fsdp.state<@u, parameter>}, %pv: !p {fsdp.state = #fsdp.state<@v, parameter>},
                %pw: !p {fsdp.state = #fsdp.state<@w, parameter>}) -> (!t {aten.output = 0 : i64}) attributes {aten.program} {
  %fu = fsdp.async.unshard @u <forward> over ["shard"] %pu : !p -> !f
  %gu = fsdp.async.wait %fu : !f -> !g
  %u = fsdp.view %gu[@u, "u"] : !g -> !t
  %x = aten.call "neg"(%u) {phase = #aten<phase forward>} : (!t) -> !t
  %freed = fsdp.async.reshard %gu : !g
  %fv = fsdp.async.unshard @v <forward> over ["shard"] %pv bucket 0 after %freed : !p -> !f
  %fw = fsdp.async.unshard @w <forward> over ["shard"] %pw bucket 0 after %freed : !p -> !f
  %gv = fsdp.async.wait %fv : !f -> !g
  %v = fsdp.view %gv[@v, "v"] : !g -> !t
  %gw = fsdp.async.wait %fw : !f -> !g
  %w = fsdp.view %gw[@w, "w"] : !g -> !t
  %y = aten.call "addcmul"(%x, %v, %w) {phase = #aten<phase forward>} : (!t, !t, !t) -> !t
  fsdp.async.reshard %gv : !g
  fsdp.async.reshard %gw : !g
  return %y : !t
}
